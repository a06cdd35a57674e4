#include "coherence/host_keeper.hpp"

#include <cerrno>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "base/death.hpp"
#include "coherence/host_client.hpp"
#include "coherence/keeper.hpp"

namespace osf::coherence {

std::pair<std::string, u16> split_host(const std::string& text) {
    size_t colon = text.rfind(':');
    if (colon == std::string::npos) throw Error(Code::bad_input, "'" + text + "' is not HOST:PORT");
    return {text.substr(0, colon), u16(std::stoul(text.substr(colon + 1)))};
}

constexpr u64 SPIN_NS = 200 * MICRO;  // after something happened, before the agent sleeps
constexpr int SLEEP_MS = 50;
constexpr u64 TAKE_OVER_NS = 20'000 * MILLI;

static std::string stem_of(const KeeperOptions& options) { return "keeper@" + options.roster->host(options.self); }

Keeper::Keeper(const KeeperOptions& options)
    : KeeperProcess({options.root, stem_of(options), options.roster->host(options.self), "", options.linger_s}), options_(options),
      roster_(*options_.roster), host_(roster_.host(options.self)), socket_(place_.directory() + "/" + stem_of(options) + ".sock") {}

Keeper::~Keeper() {
    listener_.reset();
    for (auto& [directory, opened] : spaces_) opened->stop = true;
    for (auto& [directory, opened] : spaces_) opened->join();
    handed_.clear();
    spaces_.clear();
    event_watch_.end();
    if (event_ >= 0) close(event_);
}

void Keeper::start() {
    if (!place_.take()) take_over();
    event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    event_watch_ = loop_.watch(event_, [this] { adopt_handed(); });
    take_signals();
    bind();
    open_all();
    auto [host, port] = split_host(host_);
    listener_ = std::make_unique<Listener>(host, port, options_.key, [this](std::unique_ptr<Wire>& wire, const Hello& hello) { greet(wire, hello); },
                                           [this](const std::string& text) { say(text); });
    open_door();
}

// Processes that missed a keeper have started one. It ends for one that was started to stay; the processes then meet that.
void Keeper::take_over() {
    const std::string another = "another keeper of " + host_ + " is running";
    if (linger_s_ >= 0) throw Error(Code::not_permitted, another);
    say(another + "; if it was started on demand it ends now");
    u64 asked = 0;
    for (const u64 start = now_ns(); !place_.take(); std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
        const u64 now = now_ns();
        if (now - start > TAKE_OVER_NS) throw Error(Code::not_permitted, another + ", and did not hand over");
        if (now - asked < 100 * MILLI) continue;
        asked = now;
        Note note;
        std::string text;
        bool refused = false;
        try {
            const Dialled other(socket_);
            send_note(other.fd(), LeaveNote{u64(getpid())});
            pollfd news{other.fd(), POLLIN, 0};
            refused = poll(&news, 1, 1'000) > 0 && receive_note(other.fd(), note, text) && !is_good(note);
        } catch (const Error&) {}  // it is just starting, or ending
        if (refused) throw Error(Code::not_permitted, another + ": " + text);
    }
}

// Local processes

void Keeper::heard(int socket, const Note& note, const std::string& text, int& fd) {
    try {
        std::visit(Overloaded{
            [&](const OpenNote& open) { open_for(socket, open, text); },
            [&](const AttachNote& attach) { attach_for(socket, attach, text, fd); },
            [&](const PrefetchNote& wanted) { attached(socket).prefetch(socket, wanted.number, wanted.address, wanted.bytes, wanted.write); },
            [&](const MeetNote& met) {
                if (met.host >= roster_.size()) throw Error(Code::bad_input, "there is no host " + std::to_string(met.host));
                answer(socket, met.number, attached(socket).meet(socket, u32(met.host), met.incarnation));
            },
            [&](const StatusNote& status) { answer(socket, status.number, true, attached(socket).status()); },
            [&](const CloseNote& close) { close_for(socket, close, text); },
            [&](const LeaveNote& leave) {
                if (linger_s_ < 0) throw Error(Code::not_permitted, "it was started to stay; end it first");
                say("hands over to process " + std::to_string(leave.pid));
                handing_over_ = true;
                answer(socket, 0, true);
            },
            [](const auto&) { throw Error(Code::bad_input, "a note that is not for the keeper of a host"); },
        }, note);
    } catch (const Error& error) { answer(socket, number_of(note), false, error.what()); }
}

// One that is gone is read of soon. One that is stopped with a full socket gets no answer: the agent waits for nobody.
void Keeper::answer(int socket, u64 number, bool good, std::string_view text) { try_send(socket, AnswerNote{number, good}, text); }

void Keeper::parted(int socket) {
    if (auto found = attached_.find(socket); found != attached_.end()) {
        if (auto space = spaces_.find(found->second); space != spaces_.end()) space->second->node->detach(socket);
        attached_.erase(found);
    }
    for (auto& [directory, opened] : spaces_) std::erase_if(opened->closers, [&](auto& closer) { return closer.socket == socket; });
}

Node& Keeper::attached(int socket) {
    auto found = attached_.find(socket);
    Node* node = found == attached_.end() ? nullptr : node_of(found->second);
    if (!node) throw Error(Code::bad_input, "not attached");
    return *node;
}

// `fd`, its userfaultfd, is taken from the caller.
void Keeper::attach_for(int socket, const AttachNote& note, const std::string& text, int& fd) {
    const size_t end = text.find('\n');
    const std::string wanted = text.substr(0, end);
    Node* node = node_of(wanted);
    if (attached_.count(socket) || !node || end == std::string::npos) throw Error(Code::bad_input, "nothing to attach to");
    if (node->space()->id() != note.space) throw Error(Code::closed, "the space at " + wanted + " was removed, and another one made");
    if (fd == NO_FILE_LEFT) throw Error(Code::os, "the keeper could not take the process's userfaultfd: " + limit_of_files());
    if (fd < 0 && node->lends())
        throw Error(Code::not_permitted, "this process may not use userfaultfd, but its host's keeper does; run both with the same rights");
    if (fd >= 0 && bool(note.minor) != abilities().minor)
        throw Error(Code::not_permitted, "this process and its host's keeper have different OPENSHELF_FAULTS; the keeper, process " +
                                             std::to_string(getpid()) + ", must end first");
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
    attached_[socket] = wanted;
    answer(socket, 0, true);
}

// Turns

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

int Keeper::sleep_ms() {
    sleeping_ = !waiting_ && now_ns() - busy_ns_ > SPIN_NS;
    return sleeping_ ? SLEEP_MS : 0;
}

void Keeper::woke() {
    if (const u64 now = now_ns(); now - ticked_ns_ > PAUSE_NS) tick(now);  // it was stopped: leases end before anything is admitted
}

void Keeper::turn(u64 now, bool came) {
    if (came) busy_ns_ = now;
    else if (!sleeping_) sched_yield();
    follow_roster();
    waiting_ = tick(now);
    end_closes(now);
}

bool Keeper::needed() {
    for (auto& [directory, opened] : spaces_)
        if (opened->node->processes() || opened->proxies->count()) return true;
    return has_guests();
}

bool Keeper::over(u64 now) {
    if (handing_over_) {                     // what was borrowed is the next one's
        for (auto& [directory, opened] : spaces_) opened->node->say_leaving(leaving_handed_over);
        return true;
    }
    if (!stopping_) return false;
    if (!leaving_ns_) {
        leaving_ns_ = now;
        for (auto& [directory, opened] : spaces_) opened->node->leave();
    }
    bool left = true;
    for (auto& [directory, opened] : spaces_) left &= opened->node->left();
    if (!left && now - leaving_ns_ <= LEAVE_NS) return false;
    for (auto& [directory, opened] : spaces_) opened->node->say_leaving(leaving_ended);
    return true;
}

void keeper_run(const KeeperOptions& options) {
    report_death("keeper " + options.roster->host(options.self));
    Keeper keeper(options);
    keeper.start();
    keeper.run();
}

}  // namespace osf::coherence
