#include "kv/hash.hpp"

#include "base/openssl.hpp"

namespace osf::kv {
namespace {

// As in openssl/sha.h of 3.x: SHA256_CTX has 112 bytes.
struct Sha : OpenSsl {
    int (*SHA256_Init)(void*) = nullptr;
    int (*SHA256_Update)(void*, const void*, std::size_t) = nullptr;
    int (*SHA256_Final)(u8*, void*) = nullptr;

    Sha() {
        find(SHA256_Init, "SHA256_Init");
        find(SHA256_Update, "SHA256_Update");
        find(SHA256_Final, "SHA256_Final");
    }
};

const Sha& sha() {
    static const Sha& loaded = *new Sha;  // never destroyed: threads may outlive main()
    if (!loaded.trouble.empty())
        throw Error(Code::os, std::string("keys of KV blocks need SHA-256 of OpenSSL 3 ") + OpenSsl::WHERE + loaded.trouble);
    return loaded;
}

struct Hash {
    const Sha& ssl = sha();
    alignas(16) u8 context[256];
    Hash(const char (&tag)[8]) { ssl.SHA256_Init(context), add(tag, 8); }
    Hash() { ssl.SHA256_Init(context); }
    void add(const void* data, u64 bytes) { ssl.SHA256_Update(context, data, bytes); }
    KvKey end() {
        KvKey key;
        ssl.SHA256_Final(reinterpret_cast<u8*>(&key), context);
        return key;
    }
};

constexpr char BLOCK_TAG[8] = {'O', 'S', 'F', 'K', 'V', 'B', '1', 0};
constexpr char VALUE_TAG[8] = {'O', 'S', 'F', 'K', 'V', 'V', '1', 0};
constexpr char NEXT_TAG[8] = {'O', 'S', 'F', 'K', 'V', 'N', '1', 0};

}  // namespace

KvKey sha256(std::span<const u8> data) {
    Hash hash;
    hash.add(data.data(), data.size());
    return hash.end();
}

KvChain::KvChain(const KvKey& root, u32 block_tokens) : key_(root), bytes_(4 * block_tokens) { sha(); }

const KvKey& KvChain::next(const u32* tokens) {
    Hash hash(BLOCK_TAG);
    hash.add(&key_, sizeof key_);
    hash.add(tokens, bytes_);
    return key_ = hash.end();
}

std::vector<KvKey> kv_keys(const KvKey& root, std::span<const u32> tokens, u32 block_tokens) {
    if (!block_tokens) throw Error(Code::bad_input, "a block has at least one token");
    KvChain chain(root, block_tokens);
    std::vector<KvKey> keys;
    for (u64 at = 0; at + block_tokens <= tokens.size(); at += block_tokens) keys.push_back(chain.next(tokens.data() + at));
    return keys;
}

KvKey kv_name_key(const KvKey& root, std::span<const u8> name) {
    Hash hash(VALUE_TAG);
    hash.add(&root, sizeof root);
    hash.add(name.data(), name.size());
    return hash.end();
}

KvKey kv_next_key(const KvKey& key, u64 nonce) {
    Hash hash(NEXT_TAG);
    hash.add(&key, sizeof key);
    hash.add(&nonce, sizeof nonce);
    return hash.end();
}

void kv_load_hash() { sha(); }

}  // namespace osf::kv
