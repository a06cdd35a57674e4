// Prompts and blocks whose bytes tell which they are, for the tests of KV pools.
#pragma once

#include "tests/check.hpp"
#include "kv/draft.hpp"

namespace osf::test {

constexpr u32 TOKENS = 4;
constexpr u64 BLOCK_BYTES = 192, PIECES = 2;
using Prompt = std::vector<u32>;

inline std::shared_ptr<KvPool> make_pool(const std::shared_ptr<Space>& space, u32 slots, const std::string& name = "kv") {
    KvShape shape{BLOCK_BYTES, TOKENS, slots};
    u64 bytes = kv_head(shape).bytes;
    Held held = space->make({bytes, 3, kind_pool, {bytes}, {}, name}, false);
    KvPool::format(*space, held, shape);
    space->publish(held, false);
    space->hand_out(held);
    auto pool = std::make_shared<KvPool>(space, held);
    CHECK(pool->tenant("", nullptr) == 0);
    return pool;
}

// A path down a tree: each digit of `path` is one block.
inline Prompt prompt(const std::string& path) {
    Prompt tokens;
    for (char digit : path)
        for (u32 at = 0; at < TOKENS; at++) tokens.push_back(u32(digit) * 1000 + at);
    return tokens;
}

inline const KvKey ROOT{{1, 2, 3, 4}};

// What block `at` of a prompt holds: words that depend on every token up to its end.
inline u64 word_of(const Prompt& tokens, u64 block, u64 at) {
    return hash_bytes(tokens.data(), (block + 1) * TOKENS * 4, 7) + at * 0x2545f4914f6cdd1dull;
}

// The caller's memory: piece after piece, each with all blocks.
inline std::vector<u64> bytes_for(const Prompt& tokens) {
    const u64 blocks = tokens.size() / TOKENS, words = BLOCK_BYTES / PIECES / 8;
    std::vector<u64> memory(PIECES * blocks * words);
    for (u64 piece = 0; piece < PIECES; piece++)
        for (u64 block = 0; block < blocks; block++)
            for (u64 at = 0; at < words; at++) memory[(piece * blocks + block) * words + at] = word_of(tokens, block, piece * words + at);
    return memory;
}

inline KvStored put(const std::shared_ptr<KvPool>& pool, const Prompt& tokens, u32 tenant = 0, u64 expires_ns = 0) {
    std::vector<u64> memory = bytes_for(tokens);
    const u64 piece = memory.size() / PIECES * 8;
    std::vector<u64> addresses;
    for (u64 at = 0; at < PIECES; at++) addresses.push_back(u64(memory.data()) + at * piece);
    KvDraft draft(pool, ROOT, tokens, tenant, expires_ns);
    return kv_put(draft, 0, {addresses, 0, BLOCK_BYTES / PIECES, BLOCK_BYTES / PIECES});
}

inline void check_bytes(const KvHit& hit, const Prompt& tokens) {
    for (u64 block = 0; block < hit.slots.size(); block++) {
        const u64* words = reinterpret_cast<const u64*>(hit.pool->block(hit.slots[block]));
        for (u64 at = 0; at < BLOCK_BYTES / 8; at++) CHECK(words[at] == word_of(tokens, block, at));
    }
}

// How many blocks are there, all of them whole.
inline u64 look(const std::shared_ptr<KvPool>& pool, const Prompt& tokens, bool verify = true) {
    KvHit hit(pool, ROOT, tokens, verify);
    hit.count(tokens.size() / TOKENS);
    check_bytes(hit, tokens);
    return hit.slots.size();
}

inline u32 evict(const std::shared_ptr<KvPool>& pool, const Prompt& tokens, u32 keep = 0) {
    u32 last;
    KvKey key;
    {
        KvHit hit(pool, ROOT, tokens, false);
        if (hit.slots.empty()) return 0;
        last = hit.slots.back();
        std::memcpy(&key, pool->entry(last).key, sizeof key);
    }
    return pool->evict(last, key, keep);
}

inline std::span<const u8> name(const std::string& text) { return {reinterpret_cast<const u8*>(text.data()), text.size()}; }

inline void check_sound(KvPool& pool) {
    KvAudit found = pool.audit();
    if (found.leaked || found.orphans || found.unfindable || found.miscounted || found.filling)
        failed(__FILE__, __LINE__, "KV audit: leaked " + std::to_string(found.leaked) + ", orphans " + std::to_string(found.orphans) + ", unfindable " +
                                       std::to_string(found.unfindable) + ", miscounted " + std::to_string(found.miscounted) + ", filling " + std::to_string(found.filling));
    CHECK(found.live + found.free == pool.head().slots);
}

// One thing or another that a worker does; every byte it reads is compared.
inline void random_deed(const std::shared_ptr<KvPool>& pool, std::mt19937& random) {
    std::string path = random() % 4 ? "" : "keep";
    for (u64 length = path.size() + 1 + random() % 8; path.size() < length;) path.push_back(char('a' + random() % 3));
    switch (random() % 8) {
        case 0: case 1: case 2: put(pool, prompt(path), 0, random() % 4 ? 0 : wall_ns() + random() % 2'000'000); break;
        case 3: evict(pool, prompt(path)); break;
        case 4: if (random() % 64 == 0) pool->clear(nullptr); break;
        case 5: {
            std::string key(1, char('a' + random() % 4)), value(BLOCK_BYTES * 2 + 9, key[0]);
            KvHit hit(pool, kv_name_key(ROOT, name(key)));
            std::string got(hit.nbytes, 0);
            hit.read_value(got.data());
            CHECK(hit.slots.empty() || got == value);
            KvDraft draft(pool, ROOT, name(key), value.size(), 0, 0);
            kv_put_value(draft, value.data());
            break;
        }
        default: look(pool, prompt(path));
    }
}

}  // namespace osf::test
