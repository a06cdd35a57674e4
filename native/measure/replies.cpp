// A bare TCP peer: one side asks with a small message, the other answers with bytes of its memory, which land in the
// asker's memory. Two system calls a side and nothing else, so what any protocol adds can be seen against it.
//
//     request, 16 bytes: nbytes u64 | chunk u32 | spin_us u32      answer: nbytes from the start of the server's range
//
// Both sides may spin before they block. The asker says how long, so that a server which nobody asks sleeps.
#include "measure/measure.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <system_error>

namespace osf::measure {
namespace {

using Clock = std::chrono::steady_clock;

struct Request {
    std::uint64_t nbytes;
    std::uint32_t chunk, spin_us;
};
static_assert(sizeof(Request) == 16);

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

// The descriptor may belong to an interpreter that made it non-blocking: waiting is by poll, after any spin.
void wait_for(int fd, short event) {
    pollfd wanted{fd, event, 0};
    while (::poll(&wanted, 1, -1) < 0)
        if (errno != EINTR) fail("poll");
}

void send_all(int fd, const std::byte* data, std::size_t nbytes, std::size_t chunk) {
    while (nbytes > 0) {
        const ssize_t sent = ::send(fd, data, std::min(nbytes, chunk), MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) wait_for(fd, POLLOUT);
        if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (sent <= 0) fail("send");
        data += sent;
        nbytes -= static_cast<std::size_t>(sent);
    }
}

// False: the stream ended before the first byte. Each wait spins at most `spin` before it blocks.
bool receive_all(int fd, std::byte* data, std::size_t nbytes, std::size_t chunk, Clock::duration spin) {
    bool any = false;
    Clock::time_point until{};
    while (nbytes > 0) {
        const bool spinning = spin.count() > 0 && (until == Clock::time_point{} || Clock::now() < until);
        const ssize_t got = ::recv(fd, data, std::min(nbytes, chunk), spinning ? MSG_DONTWAIT : MSG_WAITALL);
        if (got < 0 && errno == EAGAIN && spinning) {
            if (until == Clock::time_point{}) until = Clock::now() + spin;
            ::sched_yield();  // the other side may be on this very core
            continue;
        }
        if (got < 0 && errno == EAGAIN) wait_for(fd, POLLIN);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got == 0 && !any) return false;
        if (got == 0) errno = ECONNRESET;
        if (got <= 0) fail("receive");
        any = true;
        until = {};
        data += got;
        nbytes -= static_cast<std::size_t>(got);
    }
    return true;
}

void no_delay(int fd) {
    const int on = 1;
    if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) fail("TCP_NODELAY");
}

}  // namespace

void serve_replies(int fd, const std::byte* data, std::size_t nbytes) {
    no_delay(fd);
    Request request{};
    while (receive_all(fd, reinterpret_cast<std::byte*>(&request), sizeof request, sizeof request,
                       std::chrono::microseconds(request.spin_us))) {
        if (request.nbytes > nbytes || request.chunk == 0) throw std::invalid_argument("asked for more than there is");
        send_all(fd, data, request.nbytes, request.chunk);
    }
}

std::vector<double> time_replies(int fd, std::byte* data, std::size_t nbytes, std::size_t chunk, unsigned repetitions,
                                 unsigned spin_us) {
    if (nbytes == 0 || chunk == 0 || chunk > UINT32_MAX) throw std::invalid_argument("a reply needs at least one byte");
    no_delay(fd);
    const Request request{nbytes, static_cast<std::uint32_t>(chunk), spin_us};
    std::vector<double> times;
    times.reserve(repetitions);
    for (unsigned i = 0; i < repetitions; ++i) {
        const auto start = Clock::now();
        send_all(fd, reinterpret_cast<const std::byte*>(&request), sizeof request, sizeof request);
        if (!receive_all(fd, data, nbytes, chunk, std::chrono::microseconds(spin_us))) {
            errno = ECONNRESET;
            fail("receive");
        }
        times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    return times;
}

}  // namespace osf::measure
