// The few functions of the machine's OpenSSL 3 that the wire needs: AES-128-OCB and HMAC-SHA256. The library is
// loaded at run time (libcrypto.so.3), so that Openshelf builds without its headers, and a machine with one host runs without
// it. HKDF (RFC 5869) is composed of the library's HMAC; no cryptography is made here.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "base/base.hpp"

namespace osf::net {

using Digest = std::array<u8, 32>;

void random_bytes(std::span<u8> out);   // of the kernel: OpenSSL's generator has a lock that a fork may catch locked
void keep_crypto_over_forks();           // from now on no child inherits a lock of OpenSSL's that one of our threads held
Digest hmac_sha256(std::span<const u8> key, std::span<const u8> data);
Digest hkdf_extract(std::span<const u8> salt, std::span<const u8> secret);
void hkdf_expand(const Digest& secret, std::string_view info, std::span<u8> out);  // up to 255 * 32 bytes
bool same_bytes(std::span<const u8> a, std::span<const u8> b);                      // in constant time; sizes are no secret

constexpr u64 TAG = 16;
constexpr u64 REKEY_FRAMES = 1 << 20;   // of some 2^16 blocks at most: under 2^37 blocks for one key; RFC 7253 allows OCB 2^48
constexpr u64 MOST_FRAMES = 1ull << 48;

// One direction of a connection. The nonce is the number of the frame, so a frame opens only in its place: one that is repeated,
// left out or moved fails as an altered one does. After every REKEY_FRAMES both ends go on to the next key, and forget the last.
class Stream {
public:
    enum Kind { sealing, opening };
    Stream(Kind kind, const Digest& secret);

    // `out` has room for both parts and the tag. The parts may change meanwhile, as shared memory does: what is sealed is then some
    // mixture, and it opens. For OCB this needs each byte to be read once (its tag is over the clear bytes); OpenSSL does so.
    void seal(std::span<const char> head, std::span<const char> first, std::span<const char> second, char* out);
    // `in` has the bytes of both parts and the tag. False: not what was sealed; `first` and `second` may then hold anything, for
    // the bytes are deciphered before the tag, which comes last, can be compared. They mean nothing until this returns true.
    bool open(std::span<const char> head, const char* in, std::span<char> first, std::span<char> second);

private:
    struct Free { void operator()(void* context) const; };
    void take_key();
    void start();

    Kind kind_;
    Digest secret_;
    u64 frames_ = 0;
    std::unique_ptr<void, Free> context_;
};

}  // namespace osf::net
