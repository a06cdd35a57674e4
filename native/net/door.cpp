#include "net/door.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/lock.hpp"

namespace osf::net {

constexpr int HELLO_TIMEOUT_MS = 2000;

Door::Porch::Porch(const Key& with) : key(with), bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE)) {
    if (bell < 0) fail_os("cannot listen", errno);
}

Door::Porch::~Porch() { ::close(bell); }

Door::Door(const std::string& host, u16 port, const Key& key) : porch_(std::make_shared<Porch>(key)) {
    const Listening at = listen_on(host, port);
    fd_ = at.fd;
    port_ = at.port;
}

Door::~Door() { ::close(fd_); }

void Door::let_in() {
    const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        // Out of descriptors or memory: the dialer stays in the queue, and poll() would return at once.
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) fail_os("cannot accept a connection", errno);
        return;
    }
    try {
        std::thread([door = porch_, fd] {
            try {
                auto wire = Wire::accept(fd, door->key, door->memory, HELLO_TIMEOUT_MS);
                if (!wire) return;
                std::lock_guard guard(door->mutex);
                door->proven.push_back(std::move(wire));
                ::eventfd_write(door->bell, 1);
            } catch (const std::exception&) {  // no memory, no OpenSSL: the dialer sees the connection end
            }
        }).detach();
    } catch (const std::system_error&) {  // no more threads
        ::close(fd);
    }
}

std::unique_ptr<Wire> Door::accept(long timeout_ns) {
    const u64 start = now_ns();
    for (;;) {
        {
            std::lock_guard guard(porch_->mutex);
            if (!porch_->proven.empty()) {
                auto wire = std::move(porch_->proven.front());
                porch_->proven.pop_front();
                eventfd_t one;
                ::eventfd_read(porch_->bell, &one);
                return wire;
            }
        }
        const long left = timeout_ns < 0 ? 0 : std::max(0l, timeout_ns - long(now_ns() - start));
        const timespec time{left / 1'000'000'000, left % 1'000'000'000};
        pollfd ready[2] = {{fd_, POLLIN, 0}, {porch_->bell, POLLIN, 0}};
        const int events = ::ppoll(ready, 2, timeout_ns < 0 ? nullptr : &time, nullptr);
        if (events > 0 && ready[0].revents) let_in();
        if (events == 0) return nullptr;
    }
}

}  // namespace osf::net
