// Keeper: the spaces of this host, as they are opened and closed.
#include <cerrno>
#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "coherence/keeper.hpp"

namespace osf::coherence {

// Spaces that an earlier keeper had open: other hosts may hold units of them.
void Keeper::open_all() {
    std::string ending = "@" + host_;
    DIR* root = opendir(options_.root.c_str());
    if (!root) fail_os("reading " + options_.root, errno);
    std::vector<std::string> found;
    while (dirent* entry = readdir(root)) {
        std::string name = entry->d_name, directory = options_.root + "/" + name;
        if (name.ends_with(ending) && access((directory + "/units").c_str(), F_OK) == 0 && serves(name)) found.push_back(directory);
    }
    closedir(root);
    for (auto& directory : found) {
        try {
            open(directory, 64 * KIB, 0);
        } catch (const Error& error) { say(directory + ": " + error.what()); }
    }
}

void Keeper::open(const std::string& directory, u32 unit, u64 id) {
    std::string name = directory.substr(directory.rfind('/') + 1), ending = "@" + host_;
    if (directory != options_.root + "/" + name || !name.ends_with(ending))
        throw Error(Code::bad_input, directory + " is not a space of host " + host_ + " in " + options_.root);
    if (!serves(name)) throw Error(Code::bad_input, "the keeper of " + host_ + " is that of another space, whose hosts agree among themselves: each such space needs a HOST:PORT of its own");
    if (unit < UNIT_MIN || unit > UNIT_MAX || (unit & (unit - 1)))
        throw Error(Code::bad_input, "a unit of " + std::to_string(unit) + " bytes; expected a power of two from 4 KiB to 2 MiB");
    name.resize(name.size() - ending.size());
    check_pages(directory);
    auto opened = std::make_shared<Opened>();
    auto space = Space::open(directory, false, options_.boot_id);
    if (id && space->id() != id) throw Error(Code::closed, "the space at " + directory + " was removed, and another one made; open it again");
    opened->node = std::make_unique<Node>(loop_, name, space, options_.roster, options_.self, unit);
    Node& node = *opened->node;
    node.prefetched = [this](int socket, u64 number, bool good) { answer(socket, number, good); };
    node.lost = [](int socket, u64 address, u64 bytes) {
        if (!try_send(socket, LostNote{address, bytes}, {})) shutdown(socket, SHUT_RDWR);  // it comes again, and touches again
    };
    node.log = [this](const std::string& text) { say(text); };
    node.begin();
    node.follow_roster();
    const UnitsHead& units = node.segments().head();
    opened->proxies = std::make_unique<Proxies>(Served{space, units.incarnation, units.unit[options_.self],
                                                       [&node](u64 address, u64 bytes) { return node.owners(address, bytes); }, options_.roster,
                                                       [&node] { return node.epoch(); }});
    {
        std::lock_guard guard(mutex_);
        spaces_[directory] = opened;
    }
    for (u32 host = 0; host < options_.self; host++) call_host(opened, host);
    say("space '" + name + "' is open");
}

// A space under this path that is another one was removed while its keeper could not be told: it goes first.
void Keeper::open_for(int socket, const OpenNote& note, const std::string& directory) {
    auto found = spaces_.find(directory);
    if (found == spaces_.end()) {
        open(directory, u32(std::min<u64>(note.unit, ~0u)), note.space);
        return answer(socket, 0, true);
    }
    Opened& opened = *found->second;
    const bool same = opened.node->space()->id() == note.space;
    if (same && !opened.stop) return answer(socket, 0, true);
    if (!same) hear_ended(directory);
    if (!same && opened.node->processes())
        throw Error(Code::not_permitted, "processes of this host still have the space open that was at " + directory + " before; they must end first");
    begin_close(opened, socket, [this, socket, note, directory] {
        try {
            open_for(socket, note, directory);
        } catch (const Error& error) { answer(socket, 0, false, error.what()); }
    });
}

Node* Keeper::node_of(const std::string& directory) {
    auto found = spaces_.find(directory);
    return found == spaces_.end() || found->second->stop ? nullptr : found->second->node.get();
}

// Processes that have ended, though the end of their connections was not read yet, are no reason to refuse anything.
void Keeper::hear_ended(const std::string& directory) {
    std::vector<int> attached;
    for (auto& [socket, attached_to] : attached_)
        if (attached_to == directory) attached.push_back(socket);
    for (int socket : attached) {
        pollfd state{socket, POLLRDHUP, 0};
        if (poll(&state, 1, 0) <= 0) continue;
        while (knows(socket)) hear(socket);
    }
}

void Keeper::close_for(int socket, const CloseNote& note, const std::string& directory) {
    auto found = spaces_.find(directory);
    if (found == spaces_.end() || (note.space && found->second->node->space()->id() != note.space)) return answer(socket, 0, true);
    hear_ended(directory);
    if (found->second->node->processes()) throw Error(Code::not_permitted, "other processes of this host have the space open");
    begin_close(*found->second, socket, [this, socket] { answer(socket, 0, true); });
}

// What was borrowed is given back and connections are cut, while the agent goes on: all of that needs its answers.
void Keeper::begin_close(Opened& opened, int socket, std::function<void()> then) {
    opened.closers.push_back({socket, std::move(then)});
    if (opened.stop) return;
    {
        std::lock_guard guard(mutex_);
        opened.stop = true;
    }
    opened.closing_ns = now_ns();
    opened.proxies->shut();
    opened.node->leave();
}

void Keeper::end_closes(u64 now) {
    for (auto at = spaces_.begin(); at != spaces_.end();) {
        std::shared_ptr<Opened>& opened = at->second;
        std::unique_lock lock(mutex_, std::defer_lock);
        if (!opened->stop || opened->dialing || (!opened->node->left() && now - opened->closing_ns < LEAVE_NS) || (lock.lock(), opened.use_count() > 1)) {
            ++at;
            continue;
        }
        std::shared_ptr<Opened> closed = std::move(opened);
        at = spaces_.erase(at);
        lock.unlock();
        closed->node->say_leaving(leaving_closed);
        say("space '" + closed->node->name() + "' is closed");
        const auto closers = std::move(closed->closers);
        closed.reset();                      // its addresses are free before anybody hears of it
        for (auto& waiting : closers) waiting.then();
        if (!closers.empty()) return;        // they may have opened others: the rest next time
    }
}

}  // namespace osf::coherence
