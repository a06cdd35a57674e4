#include "net/wire.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/forks.hpp"
#include "base/lock.hpp"

namespace osf::net {
namespace {

constexpr size_t CHUNK = 64 * KIB;    // read at once when no large frame is expected
constexpr size_t KEPT = 4 * MIB;      // of an empty buffer; a larger one is given back
constexpr size_t ENOUGH = 2 * MIB;    // unopened input; more stays with the sender
constexpr long SPIN_NS = 50'000;
constexpr int MOST_LUCK = 8;

std::span<const char> bytes_of(const FrameHead& head) { return {reinterpret_cast<const char*>(&head), sizeof head}; }

// With one processor the peer on this machine could not run while we spin.
const bool SPINNING_CAN_PAY = std::thread::hardware_concurrency() > 1;

}  // namespace

char* Buffer::room(size_t bytes) {
    if (capacity_ - end_ >= bytes) return memory_.get() + end_;
    const size_t held = size();
    // Moving pays when it frees at least as much as it moves: each byte then moves once on average.
    if (capacity_ - held >= bytes && begin_ >= held) {
        std::memmove(memory_.get(), data(), held);
    } else {
        const size_t larger = std::max({held + bytes, 2 * capacity_, CHUNK});
        auto memory = std::make_unique_for_overwrite<char[]>(larger);
        if (held) std::memcpy(memory.get(), data(), held);
        memory_ = std::move(memory);
        capacity_ = larger;
    }
    begin_ = 0;
    end_ = held;
    return memory_.get() + end_;
}

void Buffer::taken(size_t bytes) {
    begin_ += bytes;
    if (begin_ != end_) return;
    begin_ = end_ = 0;
    if (capacity_ > KEPT) {
        memory_.reset();
        capacity_ = 0;
    }
}

Wire::~Wire() {
    if (fd_ >= 0) close_own(fd_);
}

void Wire::start(const Digest& sends, const Digest& receives) {
    seal_ = std::make_unique<Stream>(Stream::sealing, sends);
    open_ = std::make_unique<Stream>(Stream::opening, receives);
}

void Wire::lost(const std::string& why) {
    throw HostLost(peer_, "the connection to " + peer_ + " is lost: " + why);
}

void Wire::lost(int error) {
    if (error != ETIMEDOUT && error != EHOSTUNREACH && error != ENETUNREACH) lost(std::string(std::strerror(error)));
    throw Silent(peer_, "the connection to " + peer_ + " is lost: " + std::strerror(error));
}

void Wire::refuse(const std::string& why) {
    refused_ = true;
    ::shutdown(fd_, SHUT_RDWR);  // whoever alters frames gets nothing more out of either end
    throw Error(Code::refused, "the connection to " + peer_ + " was ended: " + why);
}

void Wire::check() const {
    if (refused_) throw Error(Code::refused, "the connection to " + peer_ + " was ended before: what came was not what was sent");
}

void Wire::lost_after(int timeout_ms) {
    const int on = 1, seconds = std::max(1, timeout_ms / 3000), probes = 2;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
    ::setsockopt(fd_, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);  // while nothing is under way
    ::setsockopt(fd_, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
    ::setsockopt(fd_, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    ::setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

void Wire::queue(u16 type, u64 id, std::span<const char> first, std::span<const char> second) {
    check();
    const size_t bytes = first.size() + second.size();
    if (bytes > FRAME_MAX || first.size() > FRAME_MAX)
        throw Error(Code::bad_input, "a frame of " + std::to_string(bytes) + " bytes is over the " + std::to_string(FRAME_MAX) + " that one may have");
    const FrameHead head{u32(bytes), type, FRAME_VERSION, 0, id};
    char* at = out_.room(sizeof head + bytes + TAG);
    std::memcpy(at, &head, sizeof head);
    seal_->seal(bytes_of(head), first, second, at + sizeof head);
    out_.added(sizeof head + bytes + TAG);
}

bool Wire::flush() {
    check();
    while (out_.size()) {
        const ssize_t sent = ::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            out_.taken(size_t(sent));
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return false;
        } else if (errno != EINTR) {
            lost(errno);
        }
    }
    return true;
}

void Wire::send(u16 type, u64 id, std::span<const char> first, std::span<const char> second) {
    queue(type, id, first, second);
    while (!flush()) {
        pollfd ready{fd_, POLLOUT, 0};
        ::poll(&ready, 1, -1);
    }
}

bool Wire::fill() {
    check();
    const FrameHead* ready = peek();
    const size_t held = in_.size();
    if (ready && held >= ENOUGH) return false;
    // Of a large frame no more than its end and the next head: what is behind would have to be moved to the front later.
    const size_t missing = whole_ > held ? whole_ - held : 0;
    const size_t wanted = whole_ > CHUNK ? missing + sizeof(FrameHead) : CHUNK;
    for (;;) {
        const ssize_t got = ::recv(fd_, in_.room(wanted), wanted, MSG_DONTWAIT);
        if (got > 0) {
            in_.added(size_t(got));
            return true;
        }
        if (got == 0) lost("the other side closed it");
        if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
        if (errno != EINTR) lost(errno);
    }
}

const FrameHead* Wire::peek() {
    check();
    if (!whole_) {
        if (in_.size() < sizeof head_) return nullptr;
        std::memcpy(&head_, in_.data(), sizeof head_);
        if (head_.version != FRAME_VERSION || head_.flags)
            refuse("a frame of version " + std::to_string(head_.version) + ", flags " + std::to_string(head_.flags) + " is not of this protocol");
        if (head_.bytes > FRAME_MAX) refuse("a frame says that it has " + std::to_string(head_.bytes) + " bytes, the most is " + std::to_string(FRAME_MAX));
        whole_ = sizeof head_ + head_.bytes + TAG;
    }
    return in_.size() >= whole_ ? &head_ : nullptr;
}

void Wire::open(std::span<char> first, std::span<char> second) {
    const FrameHead* head = peek();
    if (!head || first.size() > head->bytes || second.size() != head->bytes - first.size())
        throw Error(Code::bad_input, "no frame of " + std::to_string(first.size() + second.size()) + " bytes is there to be opened");
    if (!open_->open(bytes_of(*head), in_.data() + sizeof *head, first, second))
        refuse("a frame is not what was sent, or not in its place: it was altered, repeated, left out or moved on the way");
    in_.taken(whole_);
    whole_ = 0;
}

std::string Wire::open() {
    const FrameHead* head = peek();
    std::string bytes(head ? head->bytes : 0, '\0');
    open(std::span<char>(bytes));
    return bytes;
}

const FrameHead* Wire::wait(long timeout_ns) {
    if (const FrameHead* head = peek()) return head;
    const u64 start = now_ns();
    const bool spin = luck_ > 0 && SPINNING_CAN_PAY;
    u64 quiet_since = start;
    for (;;) {
        if (fill()) {
            const u64 now = now_ns();
            // A sleeper is woken late; what came within twice the time would have been caught by spinning.
            luck_ = now - quiet_since <= u64(2 * SPIN_NS) ? std::min(luck_ + 2, MOST_LUCK) : std::max(luck_ - 1, 0);
            quiet_since = now;
            if (const FrameHead* head = peek()) return head;
            continue;
        }
        const u64 now = now_ns();
        const long left = timeout_ns < 0 ? -1 : timeout_ns - long(now - start);
        if (timeout_ns >= 0 && left <= 0) return nullptr;
        if (spin && now - quiet_since < u64(SPIN_NS)) {
            sched_yield();  // whom we wait for may be waiting for this very processor
            continue;
        }
        const timespec time{left / 1'000'000'000, left % 1'000'000'000};
        pollfd ready{fd_, POLLIN, 0};
        ::ppoll(&ready, 1, timeout_ns < 0 ? nullptr : &time, nullptr);
    }
}

}  // namespace osf::net
