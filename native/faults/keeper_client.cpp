#include "faults/keeper_client.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <pthread.h>
#include <set>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

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
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) < 0) fail_os("no keeper answers at " + path, errno);
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

}  // namespace osf::faults
