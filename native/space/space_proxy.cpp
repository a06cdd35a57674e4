// Members that stand for processes on other hosts; see base/members.hpp.
#include <algorithm>

#include "space/space.hpp"

namespace osf::space {

Space::Space(const std::shared_ptr<Space>& home, bool read_only)
    : layout(home->layout), directory_(home->directory_), read_only_(read_only), base_(home->base_), control_fd_(home->control_fd_),
      members_fd_(home->members_fd_), data_fd_(home->data_fd_), identity_(home->identity_), home_(home) {
    members.attach(home->members);
    attach_parts();
}

std::shared_ptr<Space> Space::proxy(const std::shared_ptr<Space>& home, const Uuid& uuid, bool read_only) {
    home->need_write();
    std::shared_ptr<Space> space(new Space(home, read_only));
    {
        JoinLock join(home->members_fd_);
        space->adopted_ = space->members.join_remote(uuid, read_only);
        std::erase_if(home->proxies_, [](const std::weak_ptr<Space>& other) { return other.expired(); });
        home->proxies_.push_back(space);
    }
    if (space->adopted_) home->collect();
    return space;
}

std::vector<Held> Space::pinned() const {
    std::vector<Held> result;
    for (u32 pin = 0; pin < members.pins_high(members.slot()); pin++)
        if (u64 word = load(members.pin(pin)); word && !(word & FLAGS)) result.push_back({pin, word});
    return result;
}

// What it alone held is freed by the next to collect: here, the home.
void Space::leave_home() {
    if (!members.joined()) return;
    {
        JoinLock join(members_fd_);
        if (abandoned_) members.abandon();
        else members.leave();
    }
    try {
        if (!abandoned_) home_->collect();
    } catch (const Error&) {}  // the orphan is counted
}

std::vector<Uuid> Space::unclaimed() const {
    JoinLock join(members_fd_);
    std::vector<Uuid> result;
    for (u32 slot : members.unclaimed()) {
        Uuid uuid;
        std::copy_n(members.at(slot).uuid, uuid.size(), uuid.begin());
        result.push_back(uuid);
    }
    return result;
}

u32 Space::clear_unclaimed() {
    need_write();
    std::vector<u32> slots;
    {
        JoinLock join(members_fd_);
        slots = members.unclaimed();
        for (u32 slot : slots) {
            members.clear(slot);
            step();
            members.add_orphan();
        }
    }
    if (!slots.empty()) collect();
    return u32(slots.size());
}

}  // namespace osf::space
