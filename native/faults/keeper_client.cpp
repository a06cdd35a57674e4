#include "faults/keeper_client.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <pthread.h>
#include <set>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "base/lock.hpp"
#include "base/trusted.hpp"

extern char** environ;

namespace osf::faults {

// Taken last of all mutexes.
static struct HalfMade {
    std::mutex mutex;
    std::set<int> sockets;
}& half_made = *new HalfMade;  // never destroyed, as the list of owners

static void register_handlers();

Dialled::Dialled(const std::string& path) : Dialled() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) throw Error(Code::bad_input, "the path of the keeper's socket is too long: " + path);
    std::strcpy(address.sun_path, path.c_str());
    register_handlers();
    {
        std::lock_guard guard(half_made.mutex);
        fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd_ < 0) fail_os("making a socket to the keeper", errno);
        half_made.sockets.insert(fd_);
    }
    int big = 1 << 20;
    setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &big, sizeof big);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) < 0) {
        if (errno == ENOENT) throw Error(Code::os, "no keeper answers at " + path + ": it has ended");  // not a name that nobody knows
        fail_os("no keeper answers at " + path, errno);
    }
    ucred who{};
    socklen_t size = sizeof who;
    if (getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0 || (who.uid != geteuid() && who.uid != 0))
        throw Error(Code::not_permitted, "the socket " + path + " is answered by user " + std::to_string(who.uid) + ", expected " + std::to_string(geteuid()));
}

Dialled::~Dialled() {
    if (const int fd = keep(); fd >= 0) close(fd);
}

int Dialled::keep() {
    std::lock_guard guard(half_made.mutex);
    half_made.sockets.erase(fd_);
    return std::exchange(fd_, -1);
}

int listen_at(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) throw Error(Code::bad_input, "the path of the keeper's socket is too long: " + path);
    std::strcpy(address.sun_path, path.c_str());
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const Folder folder(path.substr(0, path.rfind('/')));  // nobody else can put a name there, or take one away
    unlink(path.c_str());
    mode_t mask = umask(0177);
    int bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
    umask(mask);
    if (bound == 0) return fd;
    int error = errno;
    close(fd);
    fail_os("binding " + path, error);
}

void start_keeper(std::vector<std::string>& command, pid_t& starting) {
    if (command.empty() || (starting > 0 && waitpid(starting, nullptr, WNOHANG) == 0)) return;
    std::vector<char*> argv;
    for (auto& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    if (posix_spawn(&starting, argv[0], nullptr, nullptr, argv.data(), environ) != 0) starting = 0;
}

std::string log_beside(const std::string& socket) { return socket.substr(0, socket.rfind('.')) + ".log"; }

void say_unattached(const std::string& why) {
    const std::string text = "openshelf: process " + std::to_string(getpid()) + ": " + why + "; touching its arrays will end it\n";
    [[maybe_unused]] ssize_t put = write(STDERR_FILENO, text.data(), text.size());
}

// All of this process, for fork and for SIGBUS. The signal handler reads the list without the mutex: it only grows and is
// walked in a process that is about to end.
static std::mutex& all_mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
}
static std::vector<std::atomic<FaultOwner*>>& all() {
    static auto* owners = new std::vector<std::atomic<FaultOwner*>>(64);
    return *owners;
}

static struct sigaction earlier_handler;

static void on_bus_error(int number, siginfo_t* info, void* context) {
    char text[600];
    for (auto& one : all())
        if (FaultOwner* owner = one.load(); owner && owner->explain(u64(info->si_addr), text, sizeof text)) {
            [[maybe_unused]] ssize_t put = write(STDERR_FILENO, text, strlen(text));
            signal(SIGBUS, SIG_DFL);  // the touch is made again, and ends the process
            return;
        }
    if (earlier_handler.sa_flags & SA_SIGINFO) return earlier_handler.sa_sigaction(number, info, context);
    if (earlier_handler.sa_handler != SIG_DFL && earlier_handler.sa_handler != SIG_IGN) return earlier_handler.sa_handler(number);
    signal(SIGBUS, SIG_DFL);
}

static void register_handlers() {
    static bool once = [] {
        struct sigaction action {};
        action.sa_sigaction = on_bus_error;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGBUS, &action, &earlier_handler);
        auto each = [](void (FaultOwner::*call)()) {
            for (auto& one : all())
                if (FaultOwner* owner = one.load()) (owner->*call)();
        };
        static auto visit = each;
        pthread_atfork([] { all_mutex().lock(); visit(&FaultOwner::fork_prepare); half_made.mutex.lock(); },
                       [] { half_made.mutex.unlock(); visit(&FaultOwner::fork_parent); all_mutex().unlock(); },
                       [] {
                           for (int socket : half_made.sockets) close(socket);
                           half_made.sockets.clear();
                           half_made.mutex.unlock();
                           visit(&FaultOwner::fork_child);
                           all_mutex().unlock();
                       });
        return true;
    }();
    (void)once;
}

void own_faults(FaultOwner* owner, Dialled& connection) {
    std::lock_guard guard(all_mutex());  // no fork between the two
    connection.keep();
    for (auto& one : all())
        if (FaultOwner* none = nullptr; one.compare_exchange_strong(none, owner)) return;
}

void disown_faults(FaultOwner* owner) {
    std::lock_guard guard(all_mutex());
    for (auto& one : all())
        if (one.load() == owner) one.store(nullptr);
}

KeeperClient::KeeperClient(Keeping keeping) : keeping_(std::move(keeping)) {}

KeeperClient::~KeeperClient() {
    for (int fd : {socket_, faults_})
        if (fd >= 0) close(fd);
}

void KeeperClient::begin(Dialled& keeper) {
    socket_ = keeper.fd();
    try {
        watcher_ = std::thread([this] { watch(); });
    } catch (...) {
        socket_ = -1;                         // still the caller's
        throw;
    }
    own_faults(this, keeper);
}

void KeeperClient::end() {
    disown_faults(this);
    {
        std::lock_guard guard(mutex_);
        stop_ = true;
        changed_.notify_all();
        if (socket_ >= 0) shutdown(socket_, SHUT_RDWR);
    }
    if (watcher_.joinable()) watcher_.join();
}

// Attaching

bool KeeperClient::await_note(int socket, Note& note, std::string& text) {
    pollfd news{socket, POLLIN, 0};
    for (u64 start = now_ns(); now_ns() - start < keeping_.patience_ns;) {
        if (poll(&news, 1, 100) > 0) return receive_note(socket, note, text);
        idle(false);
    }
    return false;
}

void KeeperClient::await_answer(int socket, u64 number, const std::string& doing) {
    Note note;
    std::string text;
    for (;;) {
        if (!await_note(socket, note, text))
            throw Error(Code::host_lost, "the keeper ended, or did not answer, while " + doing + "; " + log_beside(keeping_.socket) + " may say why");
        if (std::holds_alternative<AnswerNote>(note) && number_of(note) == number) break;
        take(socket, note, text);
    }
    if (!is_good(note)) refused(text);
}

void KeeperClient::introduce(int socket, const Note& note, std::string_view text) {
    send_note(socket, note, text, faults_);
    await_answer(socket, 0, "this process attached");
}

// Requests

void KeeperClient::check_attached() const {
    if (!unattached_.empty()) throw Error(keeping_.unattached, unattached_);
}

void KeeperClient::tell(const Note& note, std::string_view text) {
    try {
        send_note(socket_, note, text);
    } catch (const Error&) {}  // no keeper just now
}

std::optional<KeeperClient::Pending> KeeperClient::answer(u64 number, long timeout_ns, bool forget) {
    std::unique_lock lock(mutex_);
    auto found = pending_.find(number);
    if (found == pending_.end()) throw Error(Code::bad_input, "nothing of this number is under way");
    auto ready = [&] { return found->second.done; };
    if (timeout_ns < 0) changed_.wait(lock, ready);
    else changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), ready);
    std::optional<Pending> result;
    if (found->second.done) result = std::move(found->second);
    if (result || forget) pending_.erase(found);
    return result;
}

bool KeeperClient::done(u64 number) {
    std::lock_guard guard(mutex_);
    auto found = pending_.find(number);
    return found == pending_.end() || found->second.done;
}

// The watcher

void KeeperClient::watch() {
    do {
        Note note;
        std::string text;
        for (pollfd news{socket_, POLLIN, 0};;) {
            if (keeping_.idle_ms >= 0 && poll(&news, 1, keeping_.idle_ms) <= 0) {
                idle(true);
                continue;
            }
            if (!receive_note(socket_, note, text)) break;
            hear(note, text);
        }
    } while (find_keeper());
}

// No answer.
void KeeperClient::take(int socket, const Note& note, const std::string& text) {
    if (const LostNote* lost = std::get_if<LostNote>(&note)) lose_pages(faults_, lost->address, lost->bytes);
    else heard(socket, note, text);
}

void KeeperClient::hear(const Note& note, std::string& text) {
    const AnswerNote* answer = std::get_if<AnswerNote>(&note);
    if (!answer) return take(socket_, note, text);
    std::lock_guard guard(mutex_);
    auto found = pending_.find(answer->number);
    if (found == pending_.end()) return;
    found->second.done = true;
    found->second.good = answer->good;
    found->second.answer = std::move(text);
    answered(*answer);
    changed_.notify_all();
}

// The keeper is gone. Touches wait in the kernel until the next one has this process's userfaultfd.
bool KeeperClient::find_keeper() {
    u64 started = 0;
    pid_t starting = 0;  // the first of its two processes, which ends soon
    for (;;) {
        {
            std::lock_guard guard(mutex_);
            if (stop_) return false;
        }
        idle(false);
        std::optional<Error> failed;
        try {
            Dialled next(keeping_.socket);
            greet(next.fd());
            if (!adopt(next)) return false;
            break;
        } catch (const Error& error) { failed = error; }
        try {
            check_hope(*failed);
        } catch (const Error&) { return give_up(), false; }
        if (now_ns() - started > 300'000'000) {
            start_keeper(keeping_.command, starting);
            started = now_ns();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    if (starting > 0) waitpid(starting, nullptr, 0);
    return true;
}

// It has this process now, and hears what the earlier one knew. Answers are read meanwhile: a keeper parts with who does not.
bool KeeperClient::adopt(Dialled& next) {
    std::unique_lock lock(mutex_);
    close(socket_);
    socket_ = next.keep();
    if (stop_) return false;                  // who set it has ended the connection before this one
    const std::vector<u64> numbers = to_tell();
    lock.unlock();
    Note note;
    std::string text;
    pollfd news{socket_, POLLIN, 0};
    try {
        for (u64 number : numbers) {
            lock.lock();
            tell_again(number);
            lock.unlock();
            while (poll(&news, 1, 0) > 0 && receive_note(socket_, note, text)) hear(note, text);
        }
    } catch (const Error&) {}  // that one is gone too: its end is read next
    return true;
}

std::vector<u64> KeeperClient::to_tell() {
    std::vector<u64> numbers;
    for (auto& [number, pending] : pending_)
        if (!pending.done) numbers.push_back(number);
    return numbers;
}

void KeeperClient::tell_again(u64 number) {
    if (auto found = pending_.find(number); found != pending_.end()) send_note(socket_, found->second.note, found->second.text);
}

// Forks

void KeeperClient::fork_prepare() {
    mutex_.lock();
    int ends[2];
    if (!unattached_.empty() || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) return;
    for_child_ = ends[0];
    try {
        send_note(socket_, ChildNote{}, {}, ends[1]);
    } catch (const Error&) {}  // no keeper just now: the child finds the next one
    close(ends[1]);
}

void KeeperClient::fork_parent() {
    if (for_child_ >= 0) close(std::exchange(for_child_, -1));
    mutex_.unlock();
}

void KeeperClient::attach_again() {
    for (u64 start = now_ns();;) {
        try {
            socket_ = for_child_ >= 0 ? std::exchange(for_child_, -1) : Dialled(keeping_.socket).keep();
            return attach_child();
        } catch (const Error& error) {  // the parent finds the next keeper
            if (socket_ >= 0) close(std::exchange(socket_, -1));
            check_hope(error);
            if (now_ns() - start > 3'000'000'000) throw;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
}

void KeeperClient::fork_child() {
    new (&watcher_) std::thread;  // the parent's thread is not here
    new (&changed_) std::condition_variable;
    pending_.clear();
    for (int* fd : {&socket_, &faults_})
        if (*fd >= 0) close(std::exchange(*fd, -1));
    try {
        map_again();
        attach_again();
        watcher_ = std::thread([this] { watch(); });
    } catch (const Error& error) {
        const bool ends = forbid();
        if (unattached_.empty()) unattached_ = "this forked process could not attach to the space '" + keeping_.space + "': " + error.what();
        if (ends) say_unattached(unattached_);
    }
    if (for_child_ >= 0) close(std::exchange(for_child_, -1));
    mutex_.unlock();
}

}  // namespace osf::faults
