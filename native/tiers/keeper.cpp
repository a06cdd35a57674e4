// The keeper's process of a space with a flash tier: faults and notes of its processes, as they come, for the engine.
#include <cerrno>
#include <csignal>
#include <ctime>
#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "base/death.hpp"
#include "faults/keeper_client.hpp"
#include "faults/keeper_loop.hpp"
#include "faults/keeper_place.hpp"
#include "faults/local_door.hpp"
#include "base/log.hpp"
#include "tiers/engine.hpp"
#include "base/trusted.hpp"

namespace osf::tiers {

namespace {

constexpr int MOST_PRIORITY = 1'000'000;
struct Refusal { std::string text; };            // of a note; throw_answer in the client reads it

class TierKeeper {
public:
    TierKeeper(const std::string& directory, const std::string& boot_id, double linger_s);
    ~TierKeeper();
    void run();

private:
    struct Process {
        Loop::Watch socket, faults;              // gone before the engine may close the latter
        u32 client = NO_SLOT;
    };
    void accept_process();
    void greet(int socket);
    void listen_to(int socket);
    void hear(int socket);
    void attach_for(int socket, const TierAttachNote& note, int& fd);
    void serve(u32 client, const Note& note, const std::string& text);
    void ask_for(u32 client, const AskNote& note, const std::string& text);
    void part(int socket);
    static void answer(int socket, const Note& note, std::string_view text);

    double linger_s_;
    KeeperPlace place_;
    int local_ = -1, signals_ = -1;
    bool stopping_ = false;
    u64 needed_ns_ = now_ns();
    std::unique_ptr<TierEngine> engine_;
    std::shared_ptr<Space> space_;
    Loop loop_;
    Loop::Watch watches_[2];                 // of local_ and signals_
    Log log_;
    LocalDoor door_{"not_permitted:", [this](const std::string& text) { log_.say(text); }};
    std::map<int, Process> sockets_;
};

TierKeeper::TierKeeper(const std::string& directory, const std::string& boot_id, double linger_s) : linger_s_(linger_s), place_(directory, "keeper"), log_("of " + directory) {
    if (!place_.take()) throw Error(Code::not_permitted, "another keeper of the space at " + directory + " is running");
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    watches_[1] = loop_.watch(signals_, [this] { stopping_ = true; });
    space_ = Space::open(place_.directory(), false, boot_id);  // the one whose lock it is
    space_->map_data();
    engine_ = std::make_unique<TierEngine>(space_, real_disk());
    // While this process came up: its files on flash may be another space's by now, and nobody finds it any more.
    if (space_->removed()) throw Error(Code::closed, "the space at " + directory + " was removed before its keeper was there");
    local_ = place_.bind();
    if (listen(local_, 64) < 0) fail_os("listening for processes", errno);
    watches_[0] = loop_.watch(local_, [this] { accept_process(); });
}

TierKeeper::~TierKeeper() {
    for (auto& [socket, process] : sockets_) process = {};
    engine_.reset();
    for (auto& [socket, process] : sockets_) close(socket);
    space_.reset();
    for (auto& watch : watches_) watch.end();
    for (int fd : {local_, signals_})
        if (fd >= 0) close(fd);
}

void TierKeeper::accept_process() {
    for (;;) {
        const int fd = door_.next(local_);
        if (fd < 0) return;
        greet(fd);
        needed_ns_ = now_ns();  // it may have left before anybody looks
    }
}

void TierKeeper::greet(int socket) {
    int big = 1 << 20;
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &big, sizeof big);
    sockets_[socket].socket = loop_.watch(socket, [this, socket] { listen_to(socket); });
}

// A process that does not read its answers is parted with: it comes again, and asks again.
void TierKeeper::answer(int socket, const Note& note, std::string_view text) {
    try {
        send_note(socket, note, text.substr(0, NOTE_MAX));
    } catch (const Error&) { shutdown(socket, SHUT_RDWR); }
}

void TierKeeper::part(int socket) {
    auto found = sockets_.find(socket);
    const u32 client = found->second.client;
    sockets_.erase(found);                   // its userfaultfd is closed when no thread of the engine uses it
    if (client != NO_SLOT) engine_->detach(client);
    close(socket);
}

void TierKeeper::listen_to(int socket) {
    engine_->hold(true);
    pollfd news{socket, POLLIN, 0};
    for (int most = 256; most && sockets_.count(socket) && poll(&news, 1, 0) > 0; most--) hear(socket);
    engine_->hold(false);
}

void TierKeeper::hear(int socket) {
    Note note;
    std::string text;
    int fd = -1;
    if (!receive_note(socket, note, text, &fd)) return part(socket);
    if (std::holds_alternative<ChildNote>(note) && fd >= 0) {  // it comes from a process that was let in, and needs no path
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        return greet(fd);
    }
    try {
        if (auto* attach = std::get_if<TierAttachNote>(&note)) attach_for(socket, *attach, fd);
        else serve(sockets_.at(socket).client, note, text);
    } catch (const Refusal& why) { answer(socket, AnswerNote{number_of(note), 0}, why.text); }
    if (fd >= 0) close(fd);
}

// `fd`, its userfaultfd, is taken from the caller.
void TierKeeper::attach_for(int socket, const TierAttachNote& note, int& fd) {
    Process& process = sockets_.at(socket);
    if (note.space != space_->id()) throw Refusal{"closed:the space was removed, and another one made under its name; open it again"};
    if (process.client != NO_SLOT) throw Refusal{"bad_input:it is attached"};
    if (fd == NO_FILE_LEFT) throw Refusal{"not_permitted:the keeper could not take the process's userfaultfd: " + limit_of_files()};
    const int faults = std::exchange(fd, -1);
    TierProcess is;
    if (faults >= 0) is.faults = std::make_shared<Descriptor>(faults);
    is.member = note.slot;
    is.pid = note.pid;
    if (note.member) is.alive = [this, member = note.member] { return space_->members.alive(member); };
    is.read_only = note.read_only;
    is.again = note.again;
    is.pins_to_tell = u32(note.pins);
    is.answer = [socket](u64 number, bool good, const std::string& why) { answer(socket, AnswerNote{number, good}, why); };
    is.arm = [socket](const std::vector<u32>& units, u64 ticket) {
        answer(socket, ArmNote{ticket}, {reinterpret_cast<const char*>(units.data()), units.size() * 4});
    };
    process.client = engine_->attach(std::move(is));
    if (faults >= 0)
        process.faults = loop_.watch(faults, [this, faults, client = process.client] {
            Touch touch;
            for (int most = 64; most && read_fault(faults, touch); most--) engine_->touch(client, touch.address, touch.write);
        });
    engine_->settle();
    answer(socket, AnswerNote{0, 1}, {});
}

void TierKeeper::serve(u32 client, const Note& note, const std::string& text) {
    if (client == NO_SLOT) throw Refusal{"bad_input:not attached"};
    std::visit(Overloaded{
        [&](const AskNote& ask) { ask_for(client, ask, text); },
        [&](const CancelNote& cancel) { engine_->cancel(client, cancel.number); },
        [&](const ReorderNote& reorder) { engine_->reorder(client, reorder.number, int(std::clamp<std::int64_t>(reorder.priority, -MOST_PRIORITY, MOST_PRIORITY))); },
        [&](const ArmedNote& armed) { engine_->armed(client, armed.ticket); },
        [&](const UnpinNote& unpin) { engine_->unpin(client, unpin.number); },
        [](const auto&) { throw Refusal{"bad_input:a note that is not for the keeper of a flash tier"}; },
    }, note);
}

void TierKeeper::ask_for(u32 client, const AskNote& note, const std::string& text) {
    if (note.want < u32(Want::prefetch) || note.want > u32(Want::flush) || !note.number) throw Refusal{"bad_input:nothing that can be asked for"};
    // Twice as urgent is what native code itself waits for.
    if (text.empty()) return engine_->ask(client, note.number, Want(note.want), note.address, note.bytes, std::clamp(note.priority, -MOST_PRIORITY, 2 * MOST_PRIORITY));
    if (note.want != u32(Want::prefetch) || text.size() % sizeof(UnitRange)) throw Refusal{"bad_input:many ranges can only be prefetched"};
    std::vector<UnitRange> ranges(text.size() / sizeof(UnitRange));
    std::memcpy(ranges.data(), text.data(), text.size());
    engine_->ask_many(client, note.number, std::move(ranges), std::clamp(note.priority, -MOST_PRIORITY, MOST_PRIORITY));
}

void TierKeeper::run() {
    u64 asked = 0;
    bool settled = false;
    for (;;) {
        loop_.wait(settled ? 50 : 2);
        loop_.handle();
        if (stopping_) return;
        const u64 now = now_ns();
        if (!settled || now - asked > 20'000'000) {
            asked = now;
            settled = engine_->settle();
            if (!sockets_.empty()) needed_ns_ = now;
            else if (space_->removed()) return;
            if (linger_s_ >= 0 && double(now - needed_ns_) > linger_s_ * 1e9) return;
        }
    }
}

}  // namespace

void tier_keeper_run(const std::string& directory, const std::string& boot_id, double linger_s) {
    report_death("keeper of the space at " + directory);
    TierKeeper(directory, boot_id, linger_s).run();
}

}  // namespace osf::tiers
