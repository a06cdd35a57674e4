// Loopback TCP between two threads, with no interpreter in the way: what a message costs before any protocol.
#include "measure/measure.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace osf::measure {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

class Socket {
  public:
    explicit Socket(int fd) : fd_(fd) {
        if (fd < 0) fail("loopback socket");
    }
    ~Socket() { ::close(fd_); }
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;
    int fd() const { return fd_; }
    void shut() const { ::shutdown(fd_, SHUT_RDWR); }

    void send_all(const std::byte* data, std::size_t nbytes) const {
        while (nbytes > 0) {
            const ssize_t sent = ::send(fd_, data, nbytes, MSG_NOSIGNAL);
            if (sent < 0 && errno == EINTR) continue;
            if (sent <= 0) fail("loopback send");
            data += sent;
            nbytes -= static_cast<std::size_t>(sent);
        }
    }

    void receive_all(std::byte* data, std::size_t nbytes) const {
        while (nbytes > 0) {
            const ssize_t got = ::recv(fd_, data, nbytes, 0);
            if (got < 0 && errno == EINTR) continue;
            if (got == 0) errno = ECONNRESET;
            if (got <= 0) fail("loopback receive");
            data += got;
            nbytes -= static_cast<std::size_t>(got);
        }
    }

  private:
    int fd_;
};

// A connected pair on 127.0.0.1, on a port that the system chose.
struct Pair {
    Socket listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    Socket near{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    Socket far{connect()};

    int connect() {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof address;
        auto* any = reinterpret_cast<sockaddr*>(&address);
        if (::bind(listener.fd(), any, length) || ::listen(listener.fd(), 1) ||
            ::getsockname(listener.fd(), any, &length) || ::connect(near.fd(), any, length))
            fail("loopback connection");
        const int fd = ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC);
        const int on = 1;
        // Without it a small message waits for the acknowledgement of the one before (Nagle).
        for (int end : {near.fd(), fd})
            if (end >= 0) ::setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        return fd;
    }
};

// Runs `near` here and `far` on a thread. If either side fails, both sockets are shut so that the other cannot
// wait for ever; the first error is thrown.
template <typename Near, typename Far>
void run_both(const Pair& pair, Near near, Far far) {
    std::exception_ptr near_error, far_error;
    {
        std::jthread other([&] {
            try {
                far();
            } catch (...) {
                far_error = std::current_exception();
                pair.far.shut();
            }
        });
        try {
            near();
        } catch (...) {
            near_error = std::current_exception();
            pair.near.shut();
        }
    }
    if (near_error) std::rethrow_exception(near_error);
    if (far_error) std::rethrow_exception(far_error);
}

}  // namespace

std::vector<double> loopback_round_trips(std::size_t nbytes, unsigned repetitions) {
    if (nbytes == 0) throw std::invalid_argument("a round trip needs at least one byte");
    Pair pair;
    std::vector<std::byte> here(nbytes), there(nbytes);
    std::vector<double> times;
    run_both(
        pair,
        [&] {
            for (unsigned i = 0; i < repetitions; ++i) {
                const auto start = Clock::now();
                pair.near.send_all(here.data(), nbytes);
                pair.near.receive_all(here.data(), nbytes);
                times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
            }
        },
        [&] {
            for (unsigned i = 0; i < repetitions; ++i) {
                pair.far.receive_all(there.data(), nbytes);
                pair.far.send_all(there.data(), nbytes);
            }
        });
    return times;
}

double loopback_stream(std::size_t nbytes, std::size_t chunk_bytes) {
    if (chunk_bytes == 0) throw std::invalid_argument("a chunk needs at least one byte");
    Pair pair;
    std::vector<std::byte> here(chunk_bytes), there(chunk_bytes);
    double elapsed_s = 0;
    auto in_chunks = [&](auto each) {
        for (std::size_t left = nbytes; left > 0;) {
            const std::size_t now = left < chunk_bytes ? left : chunk_bytes;
            each(now);
            left -= now;
        }
    };
    run_both(
        pair,
        [&] {
            const auto start = Clock::now();
            in_chunks([&](std::size_t now) { pair.near.send_all(here.data(), now); });
            std::byte acknowledged;
            pair.near.receive_all(&acknowledged, 1);
            elapsed_s = std::chrono::duration<double>(Clock::now() - start).count();
        },
        [&] {
            in_chunks([&](std::size_t now) { pair.far.receive_all(there.data(), now); });
            const std::byte acknowledged{1};
            pair.far.send_all(&acknowledged, 1);
        });
    return elapsed_s;
}

}  // namespace osf::measure
