#include "net/crypto.hpp"

#include <pthread.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <vector>

#include "base/openssl.hpp"

namespace osf::net {
namespace {

// As in openssl/evp.h, hmac.h and crypto.h of 3.x, which keep them stable; a context is opaque to us.
struct Library : OpenSsl {
    int (*OPENSSL_init_crypto)(std::uint64_t, const void*);
    void* (*EVP_CIPHER_CTX_new)();
    void (*EVP_CIPHER_CTX_free)(void*);
    int (*EVP_CIPHER_CTX_ctrl)(void*, int, int, void*);
    const void* (*EVP_CIPHER_fetch)(void*, const char*, const char*);
    const void* (*EVP_sha256)();
    int (*EVP_EncryptInit_ex)(void*, const void*, void*, const u8*, const u8*);
    int (*EVP_EncryptUpdate)(void*, u8*, int*, const u8*, int);
    int (*EVP_EncryptFinal_ex)(void*, u8*, int*);
    int (*EVP_DecryptInit_ex)(void*, const void*, void*, const u8*, const u8*);
    int (*EVP_DecryptUpdate)(void*, u8*, int*, const u8*, int);
    int (*EVP_DecryptFinal_ex)(void*, u8*, int*);
    u8* (*HMAC)(const void*, const void*, int, const u8*, std::size_t, u8*, unsigned*);
    int (*CRYPTO_memcmp)(const void*, const void*, std::size_t);
    const void* ocb = nullptr;

    Library() {
        find(OPENSSL_init_crypto, "OPENSSL_init_crypto");
        find(EVP_CIPHER_CTX_new, "EVP_CIPHER_CTX_new");
        find(EVP_CIPHER_CTX_free, "EVP_CIPHER_CTX_free");
        find(EVP_CIPHER_CTX_ctrl, "EVP_CIPHER_CTX_ctrl");
        find(EVP_CIPHER_fetch, "EVP_CIPHER_fetch");
        find(EVP_sha256, "EVP_sha256");
        find(EVP_EncryptInit_ex, "EVP_EncryptInit_ex");
        find(EVP_EncryptUpdate, "EVP_EncryptUpdate");
        find(EVP_EncryptFinal_ex, "EVP_EncryptFinal_ex");
        find(EVP_DecryptInit_ex, "EVP_DecryptInit_ex");
        find(EVP_DecryptUpdate, "EVP_DecryptUpdate");
        find(EVP_DecryptFinal_ex, "EVP_DecryptFinal_ex");
        find(HMAC, "HMAC");
        find(CRYPTO_memcmp, "CRYPTO_memcmp");
        constexpr std::uint64_t NO_ATEXIT = 0x00080000;  // a thread may still be sealing while the process ends
        if (!trouble.empty()) return;
        OPENSSL_init_crypto(NO_ATEXIT, nullptr);
        ocb = EVP_CIPHER_fetch(nullptr, "AES-128-OCB", nullptr);
        if (!ocb) trouble = "this one has no AES-128-OCB: it was built with no-ocb, or is restricted to FIPS";
    }
};

const Library& library() {
    static const Library& loaded = *new Library;  // never destroyed: threads may outlive main()
    if (!loaded.trouble.empty())
        throw Error(Code::os, std::string("connections between hosts need OpenSSL 3 with AES-128-OCB ") + OpenSsl::WHERE + loaded.trouble);
    return loaded;
}

constexpr int GET_TAG = 0x10, SET_TAG = 0x11;  // EVP_CTRL_AEAD_*
constexpr u64 BLOCK = 16;

void need(int done, const char* what) {
    if (done != 1) throw Error(Code::os, std::string("OpenSSL failed in ") + what);
}

const u8* bytes_of(const char* text) { return reinterpret_cast<const u8*>(text); }
u8* bytes_of(char* text) { return reinterpret_cast<u8*>(text); }

}  // namespace

void random_bytes(std::span<u8> out) {
    while (!out.empty()) {
        ssize_t got = getrandom(out.data(), out.size(), 0);
        if (got < 0 && errno != EINTR) fail_os("getrandom", errno);
        if (got > 0) out = out.subspan(size_t(got));
    }
}

// Held by whatever may take locks inside OpenSSL: looking up algorithms, making contexts. Sealing and opening take none.
static std::mutex& gate() {
    static std::mutex& mutex = *new std::mutex;
    return mutex;
}

void keep_crypto_over_forks() {
    library();  // before the first fork: a child of a thread that is just loading it would wait for ever
    static int once = pthread_atfork([] { gate().lock(); }, [] { gate().unlock(); }, [] { gate().unlock(); });
    (void)once;
}

bool same_bytes(std::span<const u8> a, std::span<const u8> b) {
    return a.size() == b.size() && library().CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Digest hmac_sha256(std::span<const u8> key, std::span<const u8> data) {
    const Library& ssl = library();
    std::lock_guard guard(gate());
    Digest out;
    unsigned bytes = 0;
    if (!ssl.HMAC(ssl.EVP_sha256(), key.data(), int(key.size()), data.data(), data.size(), out.data(), &bytes) || bytes != out.size())
        throw Error(Code::os, "OpenSSL failed in HMAC");
    return out;
}

Digest hkdf_extract(std::span<const u8> salt, std::span<const u8> secret) { return hmac_sha256(salt, secret); }

void hkdf_expand(const Digest& secret, std::string_view info, std::span<u8> out) {
    Digest block;
    std::vector<u8> input;
    u8 number = 0;
    for (u64 done = 0; done < out.size(); done += block.size()) {
        input.assign(block.begin(), number ? block.end() : block.begin());
        input.insert(input.end(), info.begin(), info.end());
        input.push_back(++number);
        block = hmac_sha256(secret, input);
        std::memcpy(out.data() + done, block.data(), std::min<u64>(block.size(), out.size() - done));
    }
}

void Stream::Free::operator()(void* context) const {
    std::lock_guard guard(gate());
    library().EVP_CIPHER_CTX_free(context);
}

Stream::Stream(Kind kind, const Digest& secret) : kind_(kind), secret_(secret) {
    {
        const Library& ssl = library();
        std::lock_guard guard(gate());
        context_.reset(ssl.EVP_CIPHER_CTX_new());
    }
    if (!context_) throw Error(Code::no_room, "no memory for a cipher of OpenSSL");
    take_key();
}

void Stream::take_key() {
    const Library& ssl = library();
    u8 key[16];
    hkdf_expand(secret_, "openshelf wire key", key);
    auto init = kind_ == sealing ? ssl.EVP_EncryptInit_ex : ssl.EVP_DecryptInit_ex;
    std::lock_guard guard(gate());
    need(init(context_.get(), ssl.ocb, nullptr, key, nullptr), "setting a key");
}

void Stream::start() {
    if (frames_ == MOST_FRAMES) throw Error(Code::refused, "2^48 frames went over one connection, the most it may carry: connect again");
    if (frames_ && frames_ % REKEY_FRAMES == 0) {
        Digest next;
        hkdf_expand(secret_, "openshelf wire next", next);
        secret_ = next;
        take_key();
    }
    u8 nonce[12] = {};
    std::memcpy(nonce + 4, &frames_, 8);
    const Library& ssl = library();
    auto init = kind_ == sealing ? ssl.EVP_EncryptInit_ex : ssl.EVP_DecryptInit_ex;
    need(init(context_.get(), nullptr, nullptr, nullptr, nonce), "starting a frame");
    frames_++;
}

// What is no whole block stays in the context until the next part, or the end, comes: so `out` advances by what was written.
void Stream::seal(std::span<const char> head, std::span<const char> first, std::span<const char> second, char* out) {
    const Library& ssl = library();
    void* context = context_.get();
    int bytes = 0;
    start();
    need(ssl.EVP_EncryptUpdate(context, nullptr, &bytes, bytes_of(head.data()), int(head.size())), "sealing a head");
    for (auto part : {first, second}) {
        if (part.empty()) continue;
        need(ssl.EVP_EncryptUpdate(context, bytes_of(out), &bytes, bytes_of(part.data()), int(part.size())), "sealing");
        out += bytes;
    }
    need(ssl.EVP_EncryptFinal_ex(context, bytes_of(out), &bytes), "sealing a frame's end");
    need(ssl.EVP_CIPHER_CTX_ctrl(context, GET_TAG, int(TAG), out + bytes), "making a tag");
}

bool Stream::open(std::span<const char> head, const char* in, std::span<char> first, std::span<char> second) {
    const Library& ssl = library();
    void* context = context_.get();
    int bytes = 0;
    start();
    if (ssl.EVP_DecryptUpdate(context, nullptr, &bytes, bytes_of(head.data()), int(head.size())) != 1) return false;

    const u64 total = first.size() + second.size(), rest = total % BLOCK;
    // Whole blocks go straight to where they belong. One that lies in both parts, and the rest at the end, come through `block`.
    char block[BLOCK];
    u64 done = 0;
    auto take = [&](char* out, u64 count) {
        if (count && (ssl.EVP_DecryptUpdate(context, bytes_of(out), &bytes, bytes_of(in + done), int(count)) != 1 || u64(bytes) != count - count % BLOCK))
            return false;
        done += count;
        return true;
    };
    auto place = [&](u64 at, u64 count) {
        const u64 before = at < first.size() ? std::min(count, first.size() - at) : 0;
        if (before) std::memcpy(first.data() + at, block, before);
        if (count > before) std::memcpy(second.data() + (at + before - first.size()), block + before, count - before);
    };
    const u64 shared = second.empty() ? 0 : first.size() % BLOCK;  // what `first` has of a block that goes on in `second`
    if (!take(first.data(), first.size() - shared)) return false;
    if (shared) {
        if (!take(block, std::min(BLOCK, total - done))) return false;
        place(first.size() - shared, u64(bytes));
    }
    if (done < total && !take(second.data() + (done - first.size()), total - done)) return false;

    u8 tag[TAG];
    std::memcpy(tag, in + total, TAG);
    if (ssl.EVP_CIPHER_CTX_ctrl(context, SET_TAG, int(TAG), tag) != 1) return false;
    if (ssl.EVP_DecryptFinal_ex(context, bytes_of(block), &bytes) != 1 || u64(bytes) != rest) return false;
    place(total - rest, rest);
    return true;
}

}  // namespace osf::net
