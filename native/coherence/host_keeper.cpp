#include "coherence/host_keeper.hpp"

#include <cerrno>
#include <csignal>
#include <ctime>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "coherence/host_client.hpp"
#include "base/death.hpp"
#include "faults/keeper_place.hpp"
#include "net/listener.hpp"
#include "faults/local_door.hpp"
#include "base/log.hpp"
#include "coherence/node.hpp"
#include "rpc/serve.hpp"
#include "base/trusted.hpp"

namespace osf::coherence {

std::pair<std::string, u16> split_host(const std::string& text) {
    size_t colon = text.rfind(':');
    if (colon == std::string::npos) throw Error(Code::bad_input, "'" + text + "' is not HOST:PORT");
    return {text.substr(0, colon), u16(std::stoul(text.substr(colon + 1)))};
}

u64 hosts_hash(const std::vector<std::string>& hosts) {
    std::string all;
    for (auto& host : hosts) all += host + "\n";
    return hash_bytes(all.data(), all.size(), hosts.size());
}

constexpr u64 SPIN_NS = 200 * MICRO;  // after something happened, before the agent sleeps
constexpr int SLEEP_MS = 50;
constexpr u64 TAKE_OVER_NS = 20'000 * MILLI;
constexpr u64 LEAVE_NS = 1'000 * MILLI;  // that is waited for what was borrowed to arrive at its homes

class Keeper {
public:
    explicit Keeper(const KeeperOptions& options) : options_(options), log_(options.hosts[options.self]) {}
    ~Keeper();
    void run();

private:
    // A space of this host. Threads of the listener and connections on their way hold it; it is only taken out of spaces_, by the agent, when
    // they are done with it. Until then its node answers the touches of those threads.
    struct Opened {
        std::unique_ptr<Node> node;
        std::unique_ptr<Proxies> proxies;
        std::vector<std::thread> dialers;
        std::atomic<u32> dialing{0};
        std::atomic<bool> stop{false};       // it is being closed, and nobody new gets it
        u64 closing_ns = 0;
        struct Waiting { int socket; std::function<void()> then; };
        std::vector<Waiting> closers;        // what is done when it is closed
        ~Opened() { join(); }
        void join() {
            for (auto& dialer : dialers)
                if (dialer.joinable()) dialer.join();
        }
    };
    struct Guest {                           // a process, on the local socket
        Loop::Watch watch;
        std::string directory;               // of what it is attached to; or empty
    };
    struct Handed { std::shared_ptr<Opened> opened; u32 host; std::unique_ptr<Wire> wire; };

    void say(const std::string& text) const;
    void take_place();
    void take_over();
    void open_all();
    void open(const std::string& directory, u32 unit, u64 id);
    void open_for(int socket, const OpenNote& note, const std::string& directory);
    void attach_for(int socket, const AttachNote& note, const std::string& text, int& fd);
    Node* node_of(const std::string& directory);
    Node& attached(int socket);
    void hear_ended(const std::string& directory);
    void close_for(int socket, const CloseNote& note, const std::string& directory);
    void begin_close(Opened& opened, int socket, std::function<void()> then);
    void end_closes(u64 now);
    void accept_process();
    void take_in(int socket);
    void hear(int socket);
    void answer(int socket, u64 id, bool good, std::string_view text = {});
    void part(int socket);
    void greet(std::unique_ptr<Wire>& wire, const Hello& hello);
    Hello hello_of(const Node& node) const;
    void dial(const std::weak_ptr<Opened>& whole, Opened& opened, u32 host);
    void hand_over(Handed handed);
    void adopt_handed();
    bool needed();
    bool turn(bool sleep);
    bool tick(u64 now);

    KeeperOptions options_;
    std::string stem_;                       // of socket and lock
    std::unique_ptr<KeeperPlace> place_;
    Loop loop_;
    int local_ = -1, event_ = -1, signals_ = -1;
    Loop::Watch watches_[3];                 // of the first three
    mutable Log log_;
    LocalDoor door_{"", [this](const std::string& text) { say(text); }};
    std::map<int, Guest> sockets_;
    std::mutex mutex_;                       // of spaces_' structure and handed_
    std::map<std::string, std::shared_ptr<Opened>> spaces_;   // by directory
    std::vector<Handed> handed_;
    std::unique_ptr<Listener> listener_;
    bool stopping_ = false, handing_over_ = false;
    u64 busy_ns_ = 0, ticked_ns_ = now_ns(), needed_ns_ = now_ns();
};

Keeper::~Keeper() {
    listener_.reset();
    for (auto& [directory, opened] : spaces_) opened->stop = true;
    for (auto& [directory, opened] : spaces_) opened->join();
    handed_.clear();
    spaces_.clear();
    for (auto& [socket, guest] : sockets_) {
        guest.watch.end();
        close(socket);
    }
    for (auto& watch : watches_) watch.end();
    for (int fd : {local_, event_, signals_})
        if (fd >= 0) close(fd);
    place_.reset();                          // the next one may come
}

void Keeper::say(const std::string& text) const { log_.say(text); }

void Keeper::take_place() {
    stem_ = "keeper@" + options_.hosts[options_.self];
    place_ = std::make_unique<KeeperPlace>(options_.root, stem_);
    if (!place_->take()) take_over();
    event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    watches_[0] = loop_.watch(event_, [this] { adopt_handed(); });
    watches_[1] = loop_.watch(signals_, [this] { stopping_ = true; });

    local_ = place_->bind();
}

// Processes that missed a keeper have started one. It ends for one that was started to stay; the processes then meet that.
void Keeper::take_over() {
    const std::string another = "another keeper of " + options_.hosts[options_.self] + " is running";
    if (options_.linger_s >= 0) throw Error(Code::not_permitted, another);
    say(another + "; if it was started on demand it ends now");
    u64 asked = 0;
    for (const u64 start = now_ns(); !place_->take(); std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
        const u64 now = now_ns();
        if (now - start > TAKE_OVER_NS) throw Error(Code::not_permitted, another + ", and did not hand over");
        if (now - asked < 100 * MILLI) continue;
        asked = now;
        Note note;
        std::string text;
        bool refused = false;
        try {
            const Dialled other(place_->directory() + "/" + stem_ + ".sock");
            send_note(other.fd(), LeaveNote{u64(getpid())});
            pollfd news{other.fd(), POLLIN, 0};
            refused = poll(&news, 1, 1'000) > 0 && receive_note(other.fd(), note, text) && !is_good(note);
        } catch (const Error&) {}  // it is just starting, or ending
        if (refused) throw Error(Code::not_permitted, another + ": " + text);
    }
}

// Spaces that an earlier keeper had open: other hosts may hold units of them.
void Keeper::open_all() {
    std::string ending = "@" + options_.hosts[options_.self];
    DIR* root = opendir(options_.root.c_str());
    if (!root) fail_os("reading " + options_.root, errno);
    std::vector<std::string> found;
    while (dirent* entry = readdir(root)) {
        std::string name = entry->d_name, directory = options_.root + "/" + name;
        if (name.ends_with(ending) && access((directory + "/units").c_str(), F_OK) == 0) found.push_back(directory);
    }
    closedir(root);
    for (auto& directory : found) {
        try {
            open(directory, 64 * KIB, 0);
        } catch (const Error& error) { say(directory + ": " + error.what()); }
    }
}

void Keeper::open(const std::string& directory, u32 unit, u64 id) {
    std::string name = directory.substr(directory.rfind('/') + 1), ending = "@" + options_.hosts[options_.self];
    if (directory != options_.root + "/" + name || !name.ends_with(ending))
        throw Error(Code::bad_input, directory + " is not a space of host " + options_.hosts[options_.self] + " in " + options_.root);
    if (unit < UNIT_MIN || unit > UNIT_MAX || (unit & (unit - 1)))
        throw Error(Code::bad_input, "a unit of " + std::to_string(unit) + " bytes; expected a power of two from 4 KiB to 2 MiB");
    name.resize(name.size() - ending.size());
    auto opened = std::make_shared<Opened>();
    auto space = Space::open(directory, false, options_.boot_id);
    if (id && space->id() != id) throw Error(Code::closed, "the space at " + directory + " was removed, and another one made; open it again");
    opened->node = std::make_unique<Node>(loop_, name, space, options_.hosts, options_.self, unit);
    Node& node = *opened->node;
    node.prefetched = [this](int socket, u64 number, bool good) { answer(socket, number, good); };
    node.log = [this](const std::string& text) { say(text); };
    node.begin();
    const UnitsHead& units = node.segments().head();
    opened->proxies = std::make_unique<Proxies>(Served{space, units.incarnation, units.unit[options_.self], [&node](u64 address, u64 bytes) { return node.owners(address, bytes); }});
    Opened& result = *opened;
    {
        std::lock_guard guard(mutex_);
        spaces_[directory] = opened;
    }
    for (u32 host = 0; host < options_.self; host++) {
        result.dialing++;
        result.dialers.emplace_back([this, weak = std::weak_ptr(opened), &result, host] {
            dial(weak, result, host);
            result.dialing--;
        });
    }
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
    for (auto& [socket, guest] : sockets_)
        if (guest.directory == directory) attached.push_back(socket);
    for (int socket : attached) {
        pollfd state{socket, POLLRDHUP, 0};
        if (poll(&state, 1, 0) <= 0) continue;
        while (sockets_.count(socket)) hear(socket);
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
        say("space '" + closed->node->name() + "' is closed");
        const auto closers = std::move(closed->closers);
        closed.reset();                      // its addresses are free before anybody hears of it
        for (auto& waiting : closers) waiting.then();
        if (!closers.empty()) return;        // they may have opened others: the rest next time
    }
}

// Local processes

void Keeper::accept_process() {
    for (;;) {
        const int fd = door_.next(local_);
        if (fd < 0) return;
        take_in(fd);
    }
}

void Keeper::take_in(int socket) {
    sockets_[socket].watch = loop_.watch(socket, [this, socket] { hear(socket); });
    needed_ns_ = now_ns();  // it may have left before needed() is asked
}

void Keeper::answer(int socket, u64 id, bool good, std::string_view text) {
    try {
        send_note(socket, AnswerNote{id, good}, text.substr(0, NOTE_MAX));
    } catch (const Error&) {}  // it is gone, and its end is read soon; or stopped with a full socket: the agent waits for nobody
}

void Keeper::part(int socket) {
    auto found = sockets_.find(socket);
    if (auto space = spaces_.find(found->second.directory); space != spaces_.end()) space->second->node->detach(socket);
    for (auto& [directory, opened] : spaces_) std::erase_if(opened->closers, [&](auto& closer) { return closer.socket == socket; });
    sockets_.erase(found);
    close(socket);
}

void Keeper::hear(int socket) {
    Note note;
    std::string text;
    int fd = -1;
    if (!receive_note(socket, note, text, &fd)) return part(socket);
    if (std::holds_alternative<ChildNote>(note) && fd >= 0) {  // it comes from a process that was let in, and needs no path
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        return take_in(fd);
    }
    try {
        std::visit(Overloaded{
            [&](const OpenNote& open) { open_for(socket, open, text); },
            [&](const AttachNote& attach) { attach_for(socket, attach, text, fd); },
            [&](const PrefetchNote& wanted) { attached(socket).prefetch(socket, wanted.number, wanted.address, wanted.bytes, wanted.write); },
            [&](const MeetNote& met) {
                if (met.host >= options_.hosts.size()) throw Error(Code::bad_input, "there is no host " + std::to_string(met.host));
                answer(socket, met.number, attached(socket).meet(socket, u32(met.host), met.incarnation));
            },
            [&](const StatusNote& status) { answer(socket, status.number, true, attached(socket).status()); },
            [&](const CloseNote& close) { close_for(socket, close, text); },
            [&](const LeaveNote& leave) {
                if (options_.linger_s < 0) throw Error(Code::not_permitted, "it was started to stay; end it first");
                say("hands over to process " + std::to_string(leave.pid));
                handing_over_ = true;
                answer(socket, 0, true);
            },
            [](const auto&) { throw Error(Code::bad_input, "a note that is not for the keeper of a host"); },
        }, note);
    } catch (const Error& error) { answer(socket, number_of(note), false, error.what()); }
    if (fd >= 0) ::close(fd);
}

Node& Keeper::attached(int socket) {
    Node* node = node_of(sockets_.at(socket).directory);
    if (!node) throw Error(Code::bad_input, "not attached");
    return *node;
}

// `fd`, its userfaultfd, is taken from the caller.
void Keeper::attach_for(int socket, const AttachNote& note, const std::string& text, int& fd) {
    std::string& directory = sockets_.at(socket).directory;
    const size_t end = text.find('\n');
    const std::string wanted = text.substr(0, end);
    Node* node = node_of(wanted);
    if (!directory.empty() || !node || end == std::string::npos) throw Error(Code::bad_input, "nothing to attach to");
    if (node->space()->id() != note.space) throw Error(Code::closed, "the space at " + wanted + " was removed, and another one made");
    if (fd == NO_FILE_LEFT) throw Error(Code::os, "the keeper could not take the process's userfaultfd: " + limit_of_files());
    if (fd < 0 && node->lends())
        throw Error(Code::not_permitted, "this process may not use userfaultfd, but its host's keeper does; run both with the same rights");
    auto process = std::make_unique<Process>();
    process->socket = socket;
    process->faults = std::exchange(fd, -1);
    process->pid = note.pid;
    process->place = u32(note.place);
    for (size_t at = end + 1; at + sizeof(Met) <= text.size(); at += sizeof(Met)) {
        Met met;
        std::memcpy(&met, text.data() + at, sizeof met);
        process->met[u32(met.host)] = met.life;
    }
    node->attach(std::move(process));
    directory = wanted;
    answer(socket, 0, true);
}

// Other hosts

void Keeper::hand_over(Handed handed) {
    {
        std::lock_guard guard(mutex_);
        handed_.push_back(std::move(handed));
    }
    u64 one = 1;
    [[maybe_unused]] ssize_t put = write(event_, &one, sizeof one);
}

void Keeper::adopt_handed() {
    u64 count;
    [[maybe_unused]] ssize_t got = read(event_, &count, sizeof count);
    std::vector<Handed> handed;
    {
        std::lock_guard guard(mutex_);
        handed.swap(handed_);
    }
    for (Handed& one : handed)
        if (!one.opened->stop) one.opened->node->adopt(one.host, std::move(one.wire));
}

Hello Keeper::hello_of(const Node& node) const {
    Hello hello;
    hello.head.host = u16(options_.self);
    hello.head.base = node.base();
    hello.head.reserve = node.reserve();
    hello.head.hosts = u32(options_.hosts.size());
    hello.head.hosts_hash = hosts_hash(options_.hosts);
    hello.space = node.name();
    return hello;
}

// In a thread of the listener.
void Keeper::greet(std::unique_ptr<Wire>& wire, const Hello& hello) {
    std::shared_ptr<Opened> wanted;
    {
        std::lock_guard guard(mutex_);
        for (auto& [directory, opened] : spaces_)
            if (opened->node->name() == hello.space && !opened->stop) wanted = opened;
    }
    if (!wanted) throw Error(Code::unknown_name, "space '" + hello.space + "' is not open on host " + options_.hosts[options_.self]);
    Cluster{wanted->node->base(), wanted->node->reserve(), hosts_hash(options_.hosts), u32(options_.hosts.size())}.check(hello);
    if (hello.head.role == role_process) return serve_process(*wanted->proxies, wire, hello);
    if (hello.head.role != role_keeper || hello.head.host <= options_.self)
        throw Error(Code::bad_input, "host " + std::to_string(hello.head.host) + " has no reason to call as role " + std::to_string(hello.head.role));
    if (!wanted->node->settled()) throw Error(Code::host_lost, "host " + options_.hosts[options_.self] + " is starting");
    wire->send(frame_welcome, 0);
    hand_over({std::move(wanted), hello.head.host, std::move(wire)});
}

void Keeper::dial(const std::weak_ptr<Opened>& whole, Opened& opened, u32 host) {
    Node& node = *opened.node;
    auto [name, port] = split_host(options_.hosts[host]);
    std::string said;
    u32 tries = 0;
    auto pause = [&](int steps) { for (; steps && !opened.stop; steps--) std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
    while (!opened.stop) {
        if (node.connected(host) || !node.settled()) {
            pause(1);
            continue;
        }
        try {
            auto wire = Wire::connect(name, port, options_.key, ++tries % 4 ? 250 : 1000);  // a lost first packet is sent again after a second
            Hello hello = hello_of(node);
            hello.head.role = role_keeper;
            std::string bytes = hello.encode();
            wire->send(frame_hello, 0, bytes);
            const FrameHead* head = wire->wait(2'000'000'000);
            if (!head) throw Error(Code::host_lost, "no answer to the hello");
            bool welcome = head->type == frame_welcome;
            std::string text = wire->open();
            if (!welcome) throw Error(Code::refused, "it refused: " + text.substr(std::min<size_t>(4, text.size())));
            if (auto held = whole.lock()) hand_over({std::move(held), host, std::move(wire)});
            said.clear();
            pause(25);  // until the agent has it
        } catch (const Error& error) {
            if (said != error.what()) say("host " + options_.hosts[host] + ": " + (said = error.what()));
            pause(5);
        }
    }
}

bool Keeper::needed() {
    for (auto& [directory, opened] : spaces_)
        if (opened->node->processes() || opened->proxies->count()) return true;
    return !sockets_.empty();
}

bool Keeper::tick(u64 now) {
    bool waiting = false;
    ticked_ns_ = now;
    for (auto& [directory, opened] : spaces_) {
        try {
            waiting |= opened->node->tick(now);
        } catch (const Error& error) { say(directory + ": " + error.what()); }  // no memory, say; it is tried again
    }
    return waiting;
}

bool Keeper::turn(bool sleep) {
    const bool came = loop_.wait(sleep ? SLEEP_MS : 0);
    if (u64 now = now_ns(); now - ticked_ns_ > PAUSE_NS) tick(now);  // it was stopped: leases end before anything is admitted
    loop_.handle();
    return came;
}

void Keeper::run() {
    take_place();
    open_all();
    auto [host, port] = split_host(options_.hosts[options_.self]);
    listener_ = std::make_unique<Listener>(host, port, options_.key, [this](std::unique_ptr<Wire>& wire, const Hello& hello) { greet(wire, hello); }, [this](const std::string& text) { say(text); });
    if (listen(local_, 64) < 0) fail_os("listening for local processes", errno);  // last: who finds it finds all
    watches_[2] = loop_.watch(local_, [this] { accept_process(); });
    u64 asked_ns = 0, leaving_ns = 0;
    bool waiting = false;
    for (;;) {
        u64 now = now_ns();
        bool sleep = !waiting && now - busy_ns_ > SPIN_NS;
        if (turn(sleep)) busy_ns_ = now_ns();
        else if (!sleep) sched_yield();
        waiting = false;
        now = now_ns();
        waiting = tick(now);
        end_closes(now);
        if (now - asked_ns > 100 * MILLI) {
            asked_ns = now;
            if (needed()) needed_ns_ = now;
        }
        if (options_.linger_s >= 0 && double(now - needed_ns_) > options_.linger_s * 1e9) stopping_ = true;
        if (handing_over_) return;           // what was borrowed is the next one's
        if (!stopping_) continue;
        if (!leaving_ns) {
            leaving_ns = now;
            for (auto& [directory, opened] : spaces_) opened->node->leave();
        }
        bool left = true;
        for (auto& [directory, opened] : spaces_) left &= opened->node->left();
        if (left || now - leaving_ns > LEAVE_NS) return;
    }
}

void keeper_run(const KeeperOptions& options) {
    report_death("keeper " + options.hosts[options.self]);
    Keeper(options).run();
}

}  // namespace osf::coherence
