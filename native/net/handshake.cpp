// How a connection begins: resolving, dialing, listening, and the hello of both sides that net/wire.hpp draws. Nothing is allocated
// for a dialer and no byte is sent to it before its hello was proven.
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <vector>

#include "base/forks.hpp"
#include "base/lock.hpp"
#include "net/wire.hpp"

namespace osf::net {
namespace {

struct HelloBytes {
    char magic[4] = {'O', 'S', 'H', 'F'};
    u32 version = WIRE_VERSION;
    Digest random;
    Digest proof;
};
static_assert(sizeof(HelloBytes) == 72);

std::span<const u8> bytes_of(const HelloBytes& hello) { return {reinterpret_cast<const u8*>(&hello), sizeof hello}; }
std::span<const u8> bytes_of(std::string_view text) { return {reinterpret_cast<const u8*>(text.data()), text.size()}; }

// The label tells the two proofs apart, so that a hello sent back to its dialer is no answer.
Digest prove(const Key& key, std::string_view label, const HelloBytes& hello, std::span<const u8> before = {}) {
    Digest hello_key;
    hkdf_expand(hkdf_extract(bytes_of("openshelf wire"), key.bytes), "openshelf wire hello", hello_key);
    std::vector<u8> said(label.begin(), label.end());
    const auto body = bytes_of(hello).first(offsetof(HelloBytes, proof));
    said.insert(said.end(), body.begin(), body.end());
    said.insert(said.end(), before.begin(), before.end());
    return hmac_sha256(hello_key, said);
}

struct Secrets { Digest dialer, listener; };  // what each seals with

Secrets derive(const Key& key, const Digest& dialer_random, const Digest& listener_random) {
    u8 salt[64];
    std::memcpy(salt, dialer_random.data(), 32);
    std::memcpy(salt + 32, listener_random.data(), 32);
    const Digest secret = hkdf_extract(salt, key.bytes);
    Secrets out;
    hkdf_expand(secret, "openshelf wire dialer", out.dialer);
    hkdf_expand(secret, "openshelf wire listener", out.listener);
    return out;
}

struct Deadline {
    u64 at;
    explicit Deadline(int timeout_ms) : at(now_ns() + u64(std::max(0, timeout_ms)) * 1'000'000) {}
    // False: time is over.
    bool wait(int fd, short events) const {
        for (;;) {
            const u64 now = now_ns();
            if (now >= at) return false;
            pollfd ready{fd, events, 0};
            const timespec left{long((at - now) / 1'000'000'000), long((at - now) % 1'000'000'000)};
            if (::ppoll(&ready, 1, &left, nullptr) > 0) return true;
        }
    }
};

// 0: done; else the error. ECONNRESET: the stream ended; EBADMSG: these are not the first bytes of any hello.
int receive_hello(int fd, HelloBytes& hello, const Deadline& deadline) {
    char* at = reinterpret_cast<char*>(&hello);
    for (size_t have = 0; have < sizeof hello;) {
        const ssize_t got = ::recv(fd, at + have, sizeof hello - have, MSG_DONTWAIT);
        if (got == 0) return ECONNRESET;
        if (got > 0) {
            have += size_t(got);
            if (std::memcmp(at, HelloBytes().magic, std::min<size_t>(have, 4)) != 0) return EBADMSG;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!deadline.wait(fd, POLLIN)) return ETIMEDOUT;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

int send_hello(int fd, const HelloBytes& hello, const Deadline& deadline) {
    const char* at = reinterpret_cast<const char*>(&hello);
    for (size_t done = 0; done < sizeof hello;) {
        const ssize_t sent = ::send(fd, at + done, sizeof hello - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            done += size_t(sent);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!deadline.wait(fd, POLLOUT)) return ETIMEDOUT;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

void prepare(int fd) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // else a small frame waits for the one before to be acknowledged
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(std::string host, u16 port, int flags, std::string& trouble) {
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const int error = host.empty() ? EAI_NONAME : ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (error) trouble = error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error);
    return {error ? nullptr : found, freeaddrinfo};
}

// A connected socket, or -1 and the error.
int dial(const addrinfo& to, const Deadline& deadline, int& error) {
    const int fd = open_own_socket(to.ai_family, to.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, to.ai_protocol);
    error = fd < 0 ? errno : 0;
    if (fd >= 0 && ::connect(fd, to.ai_addr, to.ai_addrlen) != 0) {
        error = errno;
        if (error == EINPROGRESS || error == EINTR) {
            socklen_t bytes = sizeof error;
            if (!deadline.wait(fd, POLLOUT)) error = ETIMEDOUT;
            else if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
        }
    }
    if (!error) return fd;
    if (fd >= 0) close_own(fd);
    return -1;
}

std::string name_of_peer(int fd) {
    sockaddr_storage address{};
    socklen_t bytes = sizeof address;
    char host[64] = "?", port[16] = "?";
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (::getpeername(fd, any, &bytes) != 0 || ::getnameinfo(any, bytes, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return "an unknown peer";
    std::string name = address.ss_family == AF_INET6 ? "[" : "";
    name.append(host).append(address.ss_family == AF_INET6 ? "]:" : ":").append(port);
    return name;
}

}  // namespace

bool HelloMemory::first_time(const Digest& random) {
    std::lock_guard guard(mutex_);
    if (auto found = seen_.find(random); found != seen_.end()) {
        order_.splice(order_.begin(), order_, found->second);
        return false;
    }
    order_.push_front(random);
    seen_[random] = order_.begin();
    if (seen_.size() > most_) {
        seen_.erase(order_.back());
        order_.pop_back();
    }
    return true;
}

static std::string address_of(int fd) {
    const std::string name = name_of_peer(fd);
    return name.substr(0, name.rfind(':'));
}

void HelloMemory::enter(int fd) {
    std::string from = address_of(fd);
    std::lock_guard guard(mutex_);
    if (door_.size() >= places_) {
        std::unordered_map<std::string_view, size_t> count;
        for (const Waiting& one : door_) count[one.from]++;
        auto out = door_.begin();  // of equals, the oldest
        for (auto at = door_.begin(); at != door_.end(); ++at)
            if (count[at->from] > count[out->from]) out = at;
        ::shutdown(out->fd, SHUT_RDWR);
        door_.erase(out);
    }
    door_.push_back({fd, std::move(from)});
}

void HelloMemory::leave(int fd) {
    std::lock_guard guard(mutex_);
    std::erase_if(door_, [&](const Waiting& one) { return one.fd == fd; });
}

std::unique_ptr<Wire> Wire::connect(const std::string& host, u16 port, const Key& key, int timeout_ms) {
    const std::string peer = host + ":" + std::to_string(port);
    const Deadline deadline(timeout_ms);
    std::string trouble;
    HelloBytes hello, answer;
    random_bytes(hello.random);
    hello.proof = prove(key, "dial", hello);

    const Addresses addresses = resolve(host, port, 0, trouble);
    if (!addresses) throw HostLost(peer, "cannot find the host of " + peer + ": " + trouble);
    int fd = -1, error = 0;
    for (const addrinfo* to = addresses.get(); to && fd < 0; to = to->ai_next) fd = dial(*to, deadline, error);
    if (fd < 0) throw HostLost(peer, "cannot connect to " + peer + ": " + std::strerror(error));
    std::unique_ptr<Wire> wire(new Wire(fd, peer));
    prepare(fd);

    error = send_hello(fd, hello, deadline);
    if (!error) error = receive_hello(fd, answer, deadline);
    if (error == ECONNRESET || error == EPIPE)
        throw Unanswered(peer, "the connection to " + peer + " is lost: it was closed without an answer: the hosts files have different keys, or the keeper there has just ended");
    if (error == EBADMSG) wire->refuse("what listens there is not an Openshelf keeper");
    if (error) wire->lost(error == ETIMEDOUT ? "no answer in " + std::to_string(timeout_ms) + " ms" : std::strerror(error));
    if (!same_bytes(answer.proof, prove(key, "answer", answer, bytes_of(hello)))) wire->refuse("the answer is not by a holder of our key");
    if (answer.version != WIRE_VERSION)
        throw Error(Code::wrong_version, peer + " speaks version " + std::to_string(answer.version) + " of the wire, this is version " + std::to_string(WIRE_VERSION));
    const Secrets secrets = derive(key, hello.random, answer.random);
    wire->start(secrets.dialer, secrets.listener);
    return wire;
}

std::unique_ptr<Wire> Wire::accept(int fd, const Key& key, HelloMemory& memory, int timeout_ms) {
    struct Door {
        int fd;
        HelloMemory& memory;
        bool inside = true;
        Door(int socket, HelloMemory& of) : fd(socket), memory(of) { of.enter(socket); }
        ~Door() {
            if (inside) memory.leave(fd);
            if (fd >= 0) ::close(fd);
        }
    } door(fd, memory);
    const Deadline deadline(timeout_ms);
    prepare(fd);
    HelloBytes hello, answer;
    if (receive_hello(fd, hello, deadline) != 0) return nullptr;
    if (!same_bytes(hello.proof, prove(key, "dial", hello)) || !memory.first_time(hello.random)) return nullptr;

    random_bytes(answer.random);
    answer.proof = prove(key, "answer", answer, bytes_of(hello));
    if (send_hello(fd, answer, deadline) != 0 || hello.version != WIRE_VERSION) return nullptr;
    memory.leave(fd);
    door.inside = false;
    std::unique_ptr<Wire> wire(new Wire(fd, name_of_peer(fd)));
    door.fd = -1;
    const Secrets secrets = derive(key, hello.random, answer.random);
    wire->start(secrets.listener, secrets.dialer);
    return wire;
}

Listening listen_on(const std::string& host, u16 port) {
    const std::string where = host + ":" + std::to_string(port);
    std::string trouble;
    const Addresses addresses = resolve(host, port, AI_PASSIVE, trouble);
    if (!addresses) throw Error(Code::bad_input, "cannot listen on " + where + ": " + trouble);
    const addrinfo& at = *addresses;
    const int fd = ::socket(at.ai_family, at.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at.ai_protocol);
    if (fd < 0) fail_os("cannot listen on " + where, errno);
    const int on = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (at.ai_family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    sockaddr_storage bound{};
    socklen_t bytes = sizeof bound;
    if (::bind(fd, at.ai_addr, at.ai_addrlen) != 0 || ::listen(fd, 128) != 0 || ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &bytes) != 0) {
        const int error = errno;
        ::close(fd);
        fail_os("cannot listen on " + where, error);
    }
    const u16 chosen = bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port : reinterpret_cast<sockaddr_in&>(bound).sin_port;
    return {fd, ntohs(chosen)};
}

}  // namespace osf::net
