#include "engine/viewers.hpp"

#include <algorithm>
#include <cerrno>
#include <set>
#include <unistd.h>
#include <utility>

#include "faults/faults.hpp"

namespace osf::engine {

u32 Viewers::attach(TierProcess process) {
    const u32 number = next_++;
    Viewer& viewer = all_[number];
    viewer.bit = 1ull << (number % 64);
    viewer.is = std::move(process);
    if (!mark_all(viewer)) {
        all_.erase(number);
        throw Error(Code::os, "the keeper could not protect what is in memory from writes of the process");
    }
    if (viewer.is.again) units_.mapped_everywhere(viewer.bit);
    // Touches that the earlier keeper had heard of, and not answered, are told nobody else: they wake, and touch again.
    if (viewer.is.again && viewer.is.faults) wake_faults(viewer.is.faults->fd, units_.data_at, units_.count * UNIT);
    if (!viewer.is.faults && !viewer.is.read_only) {  // it writes unseen into what never leaves memory, and has no pin of it
        for (u32 unit = 0; unit < units_.count; unit++)
            if (units_.tier(unit) == Tier::clean && units_.unmovable(unit)) units_.set_unsure(unit);
    }
    if (!viewer.is.faults) plain_++;
    settled_ = false;  // asked again soon
    return number;
}

void Viewers::detach(u32 number) {
    auto found = all_.find(number);
    if (found == all_.end()) return;
    unpin_all(found->second);
    if (!found->second.is.faults) plain_--;
    all_.erase(found);
    settled_ = false;
}

Viewer* Viewers::find(u32 number) {
    auto found = all_.find(number);
    return found == all_.end() ? nullptr : &found->second;
}

bool Viewers::all_attached() const {
    const Members& members = units_.space->members;
    std::set<u32> attached{members.slot()};
    for (auto& [number, viewer] : all_)
        if (!viewer.is.pins_to_tell) attached.insert(viewer.is.member);
    for (u32 member = 0; member < members.slots_high(); member++)
        if (!attached.count(member) && load(members.at(member).state) == 1 && members.slot_locked(member)) return false;
    return true;
}

bool Viewers::settle() {
    const bool before = std::exchange(settled_, all_attached());
    return settled_ && !before;
}

// Page tables

void Viewers::show(Viewer& viewer, u32 first, u32 count, bool write) {
    if (!viewer.is.faults) return;
    const int faults = viewer.is.faults->fd;
    for (u32 unit = first; unit < first + count;) {
        const Tier tier = units_.tier(unit);
        if (!in_memory(tier)) {
            unit++;
            continue;
        }
        if (write && tier == Tier::clean) units_.set_tier(unit, Tier::dirty);
        const bool writable = units_.tier(unit) == Tier::dirty;
        bool known = units_.local(unit).mapped & viewer.bit;
        u32 end = unit + 1;
        if (!write)
            while (end < first + count && units_.tier(end) == tier) known |= (units_.local(end++).mapped & viewer.bit) != 0;
        for (u32 at = unit; at < end; at++) units_.local(at).mapped |= viewer.bit;
        const u64 start = units_.address_of(unit), bytes = u64(end - unit) * UNIT;
        map_pages(faults, start, bytes, writable);
        if (writable && known) protect_pages(faults, start, bytes, false);  // where it is mapped already, and protected
        unit = end;
    }
}

std::shared_ptr<Descriptor> Viewers::will_see(u32 client, u32 first, u32 count, u32 skip) {
    Viewer* viewer = find(client);
    if (!viewer || !viewer->is.faults) return nullptr;
    for (u32 unit = first; unit < first + count; unit++)
        if (unit != skip) units_.local(unit).mapped |= viewer->bit;
    return viewer->is.faults;
}

static bool mark_pages(const Viewer& viewer, u64 start, u64 bytes) {
    const int error = viewer.is.faults ? protect_pages(viewer.is.faults->fd, start, bytes, true) : 0;
    if (error != ENOENT || bytes == UNIT) return !error || error == ESRCH || error == ENOENT;  // ENOENT: it is gone, with the process or by lose_pages
    for (u64 at = start; at < start + bytes; at += UNIT)
        if (!mark_pages(viewer, at, UNIT)) return false;
    return true;
}

bool Viewers::protect(u32 unit) {
    const u64 mapped = abilities().minor ? units_.local(unit).mapped : ~0ull;
    for (auto& [number, viewer] : all_)
        if ((mapped & viewer.bit) && !mark_pages(viewer, units_.address_of(unit), UNIT)) return false;
    return true;
}

bool Viewers::mark(u32 first, u32 count) {
    if (abilities().minor) return true;
    for (auto& [number, viewer] : all_)
        if (!mark_pages(viewer, units_.address_of(first), u64(count) * UNIT)) return false;
    return true;
}

// In a process that is new here: all that is in the file, or on its way there, and not dirty.
bool Viewers::mark_all(const Viewer& viewer) const {
    if (abilities().minor) return true;
    auto marked = [&](u32 unit) { return unit < units_.count && units_.tier(unit) != Tier::empty && units_.tier(unit) != Tier::flash && units_.tier(unit) != Tier::dirty; };
    for (u32 unit = 0; unit < units_.count; unit++) {
        const u32 first = unit;
        while (marked(unit)) unit++;
        if (first < unit && !mark_pages(viewer, units_.address_of(first), u64(unit - first) * UNIT)) return false;
    }
    return true;
}

void Viewers::poison(u32 client, u32 unit) {
    Viewer* viewer = find(client);
    if (!viewer || !viewer->is.faults) return;
    if (abilities().poison) poison_pages(viewer->is.faults->fd, units_.address_of(unit), UNIT);
    else viewer->is.lose(units_.address_of(unit), UNIT);
}

void Viewers::watch(u32 unit) {
    for (auto& [number, viewer] : all_)
        if (viewer.is.faults && (units_.local(unit).mapped & viewer.bit)) viewer.arming.push_back(unit);
}

void Viewers::tell_watched() {
    for (auto& [number, viewer] : all_)
        if (viewer.arming.size() >= std::min<u64>(64, units_.capacity / 16)) viewer.is.arm(std::exchange(viewer.arming, {}), 0);
}

std::vector<u32> Viewers::mapping(const std::vector<u32>& units) const {
    u64 mapped = 0;
    for (u32 unit : units) mapped |= units_.local(unit).mapped;
    std::vector<u32> clients;
    for (auto& [number, viewer] : all_)
        if (viewer.is.faults && (mapped & viewer.bit)) clients.push_back(number);
    return clients;
}

// Pins

void Viewers::pin(Viewer& viewer, u64 id, u32 first, u32 last) {
    const bool plain = !viewer.is.read_only;  // also with faults: devices, and system calls where faults are for user mode only
    viewer.pins[id] = {first, last, plain};
    for (u32 unit = first; unit < last; unit++) units_.pin(unit, plain);
    units_.tell_pinned();
}

void Viewers::unpin(Viewer& viewer, u64 id) {
    auto found = viewer.pins.find(id);
    if (found == viewer.pins.end()) return;
    for (u32 unit = found->second.first; unit < found->second.last; unit++) units_.unpin(unit, found->second.plain);
    viewer.pins.erase(found);
    units_.tell_pinned();
}

void Viewers::unpin_all(Viewer& viewer) {
    while (!viewer.pins.empty()) unpin(viewer, viewer.pins.begin()->first);
}

// A process that died has nothing pinned, though the end of its connection was not read yet.
bool Viewers::drop_dead_pins() {
    bool any = false;
    for (auto& [number, viewer] : all_) {
        if (viewer.pins.empty() || !viewer.is.alive || viewer.is.alive()) continue;
        unpin_all(viewer);
        any = true;
    }
    return any;
}

}  // namespace osf::engine
