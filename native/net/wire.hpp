// One authenticated, encrypted, ordered connection between two holders of the same key, over TCP.
//
// Handshake, 72 bytes each way (net/handshake.cpp). The dialer's is answered only if its proof is right and its nonce is new:
//
//   0  "OSHF"     4  u32 version     8  u8[32] random     40  u8[32] proof
//
//   dialer's proof    HMAC-SHA256(hello key, "dial" + its bytes 0 to 39)
//   listener's proof  HMAC-SHA256(hello key, "answer" + its bytes 0 to 39 + the dialer's 72 bytes)
//
// Frame, any number each way, sealed with AES-128-OCB (RFC 7253). The head travels in clear and is authenticated with the payload:
//
//   0  u32 bytes of payload     4  u16 type     6  u8 version     7  u8 flags (0)     8  u64 id     16  payload     16+bytes  u8[16] tag
//
// The nonce is the frame's number in its direction and is never sent. Keys are HKDF-SHA256 of the shared key, salted with both
// randoms; see docs/formats/hosts.md for what this protects and what not.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

#include "net/crypto.hpp"

namespace osf::net {

struct Key { u8 bytes[32]; };

struct FrameHead {
    u32 bytes;
    u16 type;
    u8 version, flags;
    u64 id;
};
static_assert(sizeof(FrameHead) == 16);

constexpr u32 FRAME_MAX = u32(MIB + 4 * KIB);  // of payload; a head that says more is refused before anything is buffered
constexpr u32 BULK = u32(256 * KIB);           // payload of one frame of many: the sealed bytes still fit a core's cache
constexpr u8 FRAME_VERSION = 1;
constexpr u32 WIRE_VERSION = 3;  // 1 sealed with AES-128-GCM; 2 sent the bytes of a unit in one frame

// What a listener remembers of dialers: the randoms of hellos it answered, so that a repeated hello gets no answer, and who is at
// the door now, unproven. Safe for many threads. Only hellos of key holders are remembered, so nobody else can push them out. The
// door has few places, and a newcomer always gets one: of those who came from where most come from, the oldest goes.
class HelloMemory {
public:
    explicit HelloMemory(size_t most = 65536, size_t at_the_door = 64) : most_(most), places_(at_the_door) {}
    bool first_time(const Digest& random);
    void enter(int fd);  // who is sent away for it finds its connection ended
    void leave(int fd);  // before it is closed

private:
    struct Hash { size_t operator()(const Digest& random) const { return hash_bytes(random.data(), random.size(), 0); } };
    std::mutex mutex_;
    size_t most_;
    std::list<Digest> order_;  // last used first
    std::unordered_map<Digest, std::list<Digest>::iterator, Hash> seen_;
    struct Waiting {
        int fd;
        std::string from;      // address without port
    };
    const size_t places_;
    std::list<Waiting> door_;  // oldest first
};

// The other side closed a connection without a word: it has another key, is full or has just ended.
struct Unanswered : HostLost {
    using HostLost::HostLost;
};

// The machine on the other side did not answer any more. Otherwise somebody there ended the connection.
struct Silent : HostLost {
    using HostLost::HostLost;
};

// Bytes on their way: taken at the front, added at the end, moved only when the end has no room.
class Buffer {
public:
    size_t size() const { return end_ - begin_; }
    char* data() { return memory_.get() + begin_; }
    char* room(size_t bytes);  // at the end; valid until the next call
    void added(size_t bytes) { end_ += bytes; }
    void taken(size_t bytes);

private:
    std::unique_ptr<char[]> memory_;
    size_t capacity_ = 0, begin_ = 0, end_ = 0;
};

// Sending and receiving share nothing: one thread may do the one while another does the other, but not two the same.
// What threw host_lost will throw it again. After refused nothing is sent or received any more.
class Wire {
public:
    // Names are resolved by the system, which may take longer than the timeout; addresses are not.
    // Throws host_lost (also when the listener ends the connection, as it does for another key), refused, wrong_version.
    static std::unique_ptr<Wire> connect(const std::string& host, u16 port, const Key& key, int timeout_ms);
    // Owns fd from now on. nullptr: no dialer with this key and version; nothing was answered (but our version, to one with the key).
    static std::unique_ptr<Wire> accept(int fd, const Key& key, HelloMemory& memory, int timeout_ms);
    ~Wire();
    Wire(const Wire&) = delete;
    Wire& operator=(const Wire&) = delete;

    int fd() const { return fd_; }
    const std::string& peer() const { return peer_; }  // host:port
    // The connection counts as broken when the peer's machine acknowledged nothing for so long. Mind that this
    // includes bytes that it has no room for because its process does not read.
    void lost_after(int timeout_ms);

    // Never blocking:
    void queue(u16 type, u64 id, std::span<const char> first = {}, std::span<const char> second = {});  // sealed at once: the sources are free
    bool flush();  // true: all is out; false: wait for POLLOUT. Throws host_lost
    size_t queued() const { return out_.size(); }
    bool fill();   // reads some of what there is; false: nothing (or 2 MiB wait to be opened). Throws host_lost at the end of the stream, refused
    // The next frame's head, if the frame is there completely. Nothing of it is proven before open(): look up a destination
    // by `id` only among those that are awaited, for a forged frame is scribbled there before it is refused.
    const FrameHead* peek();                                        // throws refused
    void open(std::span<char> first, std::span<char> second = {});  // the peeked frame; sizes sum to head.bytes. Throws refused
    std::string open();

    // Blocking:
    void send(u16 type, u64 id, std::span<const char> first = {}, std::span<const char> second = {});
    const FrameHead* wait(long timeout_ns);  // nullptr: time is over; < 0: for ever. Spins first when that has paid lately

private:
    Wire(int fd, std::string peer) : fd_(fd), peer_(std::move(peer)) {}
    void start(const Digest& sends, const Digest& receives);
    [[noreturn]] void lost(const std::string& why);
    [[noreturn]] void lost(int error);
    [[noreturn]] void refuse(const std::string& why);
    void check() const;

    int fd_;
    std::string peer_;
    std::atomic<bool> refused_ = false;
    std::unique_ptr<Stream> seal_, open_;
    Buffer out_, in_;
    FrameHead head_ = {};
    size_t whole_ = 0;  // bytes of the frame whose head is in head_; 0: none yet
    int luck_ = 4;      // of spinning
};

struct Listening {
    int fd;
    u16 port;
};
// A non-blocking listening socket. Port 0: the system chooses. `host` as in connect: IPv4, IPv6 (in brackets or not), or a name.
Listening listen_on(const std::string& host, u16 port);

}  // namespace osf::net
