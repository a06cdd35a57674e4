// Keys of blocks: a chain of SHA-256, so that a key stands for everything before it (docs/formats/kv.md has the bytes).
//
// SHA-256 of the machine's OpenSSL: 0.11 us a block of 16 tokens where the CPU has SHA instructions, and anybody can make the same keys
// with Python's hashlib. The functions without EVP are called: half the time for so few bytes.
#pragma once

#include <span>
#include <vector>

#include "kv/format.hpp"

namespace osf::kv {

void kv_load_hash();        // the library, while nobody forks: a child of a thread that is just loading it would wait for ever

KvKey sha256(std::span<const u8> data);

// key of a block = SHA-256("OSFKVB1\0" + key of the one before + tokens as little-endian u32)
class KvChain {
public:
    KvChain(const KvKey& root, u32 block_tokens);
    const KvKey& next(const u32* tokens);       // block_tokens of them

private:
    KvKey key_;
    u32 bytes_;
};

// Of the whole blocks of a prompt.
std::vector<KvKey> kv_keys(const KvKey& root, std::span<const u32> tokens, u32 block_tokens);

// key of a plain value's first block = SHA-256("OSFKVV1\0" + root + name), of those that follow = SHA-256("OSFKVN1\0" + key before +
// nonce as little-endian u64): what one put wrote never continues what another began
KvKey kv_name_key(const KvKey& root, std::span<const u8> name);
KvKey kv_next_key(const KvKey& key, u64 nonce);

}  // namespace osf::kv
