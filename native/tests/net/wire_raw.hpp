// A peer of a Wire written from the drawing in net/wire.hpp alone, byte by byte, so that it can lie: the tests alter, cut, repeat and
// reorder what it says. It works on one end of a socket pair and needs no second thread: what it writes is there to be read.
#pragma once

#include <sys/socket.h>

#include <dirent.h>

#include "tests/check.hpp"
#include "net/wire.hpp"

namespace osf::test {

inline Key key_of(u8 fill) {
    Key key;
    std::memset(key.bytes, fill, sizeof key.bytes);
    return key;
}

inline std::span<const u8> bytes_of(const std::string& text) { return {reinterpret_cast<const u8*>(text.data()), text.size()}; }
inline std::string text_of(std::span<const u8> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

inline int open_files() {
    DIR* directory = ::opendir("/proc/self/fd");
    int count = 0;
    while (::readdir(directory)) count++;
    ::closedir(directory);
    return count;
}

class Raw {
public:
    int fd = -1, other = -1;  // `other` is for Wire::accept, which owns it then
    Key key;
    std::string mine, theirs;  // the hellos
    std::unique_ptr<Stream> seals, opens;

    explicit Raw(const Key& with) : key(with) {
        int ends[2];
        CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
        fd = ends[0];
        other = ends[1];
    }
    Raw(const Key& with, int connected) : fd(connected), key(with) {}
    ~Raw() { end(); }
    Raw(const Raw&) = delete;

    void end() {
        if (fd >= 0) ::close(fd);
        fd = -1;
    }
    void write(const std::string& bytes) { CHECK(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == ssize_t(bytes.size())); }
    // All that comes until there are so many bytes or the stream ends.
    std::string read(size_t bytes) {
        std::string out(bytes, '\0');
        size_t have = 0;
        while (have < bytes) {
            const ssize_t got = ::recv(fd, out.data() + have, bytes - have, 0);
            if (got <= 0) break;
            have += size_t(got);
        }
        out.resize(have);
        return out;
    }

    std::string hello(const std::string& label, u32 version = WIRE_VERSION) {
        u8 random[32];
        random_bytes(random);
        const std::string body = "OSHF" + std::string(reinterpret_cast<const char*>(&version), 4) + text_of(random);
        Digest hello_key;
        hkdf_expand(hkdf_extract(bytes_of("openshelf wire"), key.bytes), "openshelf wire hello", hello_key);
        mine = body + text_of(hmac_sha256(hello_key, bytes_of(label + body + (label == "answer" ? theirs : ""))));
        return mine;
    }
    void derive(bool dialer) {
        const std::string randoms = dialer ? mine.substr(8, 32) + theirs.substr(8, 32) : theirs.substr(8, 32) + mine.substr(8, 32);
        const Digest secret = hkdf_extract(bytes_of(randoms), key.bytes);
        Digest of_dialer, of_listener;
        hkdf_expand(secret, "openshelf wire dialer", of_dialer);
        hkdf_expand(secret, "openshelf wire listener", of_listener);
        seals = std::make_unique<Stream>(Stream::sealing, dialer ? of_dialer : of_listener);
        opens = std::make_unique<Stream>(Stream::opening, dialer ? of_listener : of_dialer);
    }
    // Both sides of a good handshake, this one dialing.
    std::unique_ptr<Wire> meet(HelloMemory& memory) {
        write(hello("dial"));
        auto wire = Wire::accept(other, key, memory, 1000);
        CHECK(wire);
        theirs = read(72);
        CHECK(theirs.size() == 72);
        derive(true);
        return wire;
    }

    std::string frame(u16 type, u64 id, const std::string& payload) {
        const FrameHead head{u32(payload.size()), type, FRAME_VERSION, 0, id};
        std::string out(sizeof head + payload.size() + TAG, '\0');
        std::memcpy(out.data(), &head, sizeof head);
        seals->seal({out.data(), sizeof head}, payload, {}, out.data() + sizeof head);
        return out;
    }
};

struct Got {
    u16 type;
    u64 id;
    std::string payload;
    bool operator==(const Got&) const = default;
};

// All frames that can be had, until the stream ends or is refused; and which of the two.
inline std::pair<std::vector<Got>, Code> drain(Wire& wire) {
    std::vector<Got> got;
    try {
        for (;;) {
            const FrameHead* head = wire.wait(2'000'000'000);
            if (!head) return {got, Code::os};
            const u16 type = head->type;
            const u64 id = head->id;
            got.push_back({type, id, wire.open()});
        }
    } catch (const Error& error) {
        return {got, error.code};
    }
}

template <class Call>
Code code_of(Call call) {
    try {
        call();
    } catch (const Error& error) {
        return error.code;
    }
    return Code(-1);
}

}  // namespace osf::test
