#include "net/listener.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "faults/local_door.hpp"

namespace osf::net {

constexpr int HELLO_MS = 2000;

void Cluster::check(const Hello& hello) const {
    auto differ = [&](const char* what, u64 theirs, u64 ours) {
        if (theirs == ours) return;
        char text[200];
        std::snprintf(text, sizeof text, "%s %#llx for the caller and %#llx here: all hosts need the same hosts file", what,
                      (unsigned long long)theirs, (unsigned long long)ours);
        throw Error(Code::refused, text);
    };
    differ("the number of hosts is", hello.head.hosts, hosts);
    differ("the list of hosts hashes to", hello.head.hosts_hash, hosts_hash);
    differ("the base address is", hello.head.base, base);
    differ("the addresses reserved per host are", hello.head.reserve, reserve);
    if (hello.head.host >= hosts) throw Error(Code::refused, "the caller says that it is host " + std::to_string(hello.head.host) + " of " + std::to_string(hosts));
}

Listener::Listener(const std::string& host, u16 port, const Key& key, Serve serve, Say say) : key_(key), serve_(std::move(serve)), say_(std::move(say)) {
    stop_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stop_fd_ < 0) fail_os("eventfd", errno);
    Listening listening = listen_on(host, port);
    fd_ = listening.fd;
    port_ = listening.port;
    thread_ = std::thread([this] { run(); });
}

Listener::~Listener() { stop(); }

void Listener::stop() {
    if (!thread_.joinable()) return;
    ::eventfd_write(stop_fd_, 1);
    thread_.join();
    ::close(fd_);
    reap(true);
    ::close(stop_fd_);
}

void Listener::run() {
    for (;;) {
        pollfd ready[] = {{fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
        ::poll(ready, 2, -1);
        if (ready[1].revents) return;
        reap(false);
        int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                if (say_) say_("the keeper cannot take in a connection of another host: " + limit_of_files());
                ::poll(ready + 1, 1, 50);  // until somebody leaves; the dialer waits in the queue
            }
            continue;
        }
        std::lock_guard guard(mutex_);
        Guest& guest = guests_.emplace_back();
        guest.fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (guest.fd < 0) {  // no descriptor is left to cut it by: it would hold up our end
            ::close(fd);
            guests_.pop_back();
            continue;
        }
        try {
            guest.thread = std::thread([this, fd, &guest] { welcome(fd, guest); });
        } catch (const std::system_error&) {
            ::close(fd);
            guest.done = true;
        }
    }
}

// The hello of one who proved the key. Of those who stay silent there are few at a time: a hello that was recorded proves it too, to
// a listener that does not remember it.
const FrameHead* Listener::hear(Wire& wire) {
    struct Place {
        HelloMemory& among;
        const int fd;
        Place(HelloMemory& of, int socket) : among(of), fd(socket) { among.enter(fd); }
        ~Place() { among.leave(fd); }
    } place(unheard_, wire.fd());
    return wire.wait(HELLO_MS * 1'000'000l);
}

void Listener::welcome(int fd, Guest& guest) {
    try {
        std::unique_ptr<Wire> wire = Wire::accept(fd, key_, memory_, HELLO_MS);
        const FrameHead* head = wire ? hear(*wire) : nullptr;
        if (head && head->type == frame_hello) {
            try {
                Hello hello = Hello::decode(wire->open());
                if (hello.head.protocol != PROTOCOL)
                    throw Error(Code::wrong_version, "the caller speaks protocol " + std::to_string(hello.head.protocol) + ", this host " + std::to_string(PROTOCOL));
                serve_(wire, hello);
            } catch (const Error& error) {
                u32 code = u32(error.code);
                if (wire) wire->send(frame_refused, 0, {reinterpret_cast<const char*>(&code), sizeof code}, std::string_view(error.what()));
            }
        }
    } catch (const std::exception&) {}  // the connection ended
    std::lock_guard guard(mutex_);
    ::close(guest.fd);
    guest.fd = -1;
    guest.done = true;
}

void Listener::reap(bool all) {
    std::list<Guest> gone;
    {
        std::lock_guard guard(mutex_);
        for (auto at = guests_.begin(); at != guests_.end();) {
            auto next = std::next(at);
            if (all && at->fd >= 0) ::shutdown(at->fd, SHUT_RDWR);
            if (at->done || all) gone.splice(gone.end(), guests_, at);
            at = next;
        }
    }
    for (Guest& guest : gone)
        if (guest.thread.joinable()) guest.thread.join();
}

}  // namespace osf::net
