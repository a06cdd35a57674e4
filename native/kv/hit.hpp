// The longest prefix of a prompt that a pool has, pinned by its last block; and blocks copied out of a pool.
#pragma once

#include "kv/pool.hpp"

namespace osf::kv {

// Blocks are made of equal pieces, one after the other: every layer's keys and values, or finer. In the caller's memory piece p of block b is
// at addresses[p] + b * step: contiguous over the blocks where step is the piece's size. With a table, it is that of page table[b].
struct KvPieces {
    std::span<const u64> addresses;
    u64 first = 0;                               // of the block's pieces
    u64 bytes = 0, step = 0;
    std::span<const u32> table = {};
    char* at(u64 piece, u64 block) const { return reinterpret_cast<char*>(addresses[piece]) + (table.empty() ? block : table[block]) * step; }
};

class KvHit {
public:
    KvHit(std::shared_ptr<KvPool> pool, const KvKey& root, std::span<const u32> tokens, bool verify);
    KvHit(std::shared_ptr<KvPool> pool, std::span<const KvKey> keys, u64 first);        // of the blocks from `first` on, and only these
    KvHit(std::shared_ptr<KvPool> pool, const KvKey& name_key);                         // a plain value
    KvHit(KvHit&&) = default;

    // In a space with a flash tier: asks for its blocks ahead of their use. Without faults it holds them in memory, and waits for that; what
    // there is no room for is cut off.
    void prefetch();
    void count(u64 queried);                     // in the pool's statistics, and as a use of its blocks
    void read(u64 block, u64 count, const KvPieces& into) const;
    void read_value(char* into) const;           // all of nbytes
    void stick(bool on) const;                   // its last block, and so all; off: whichever of its blocks were

    std::shared_ptr<KvPool> pool;
    std::vector<u32> slots;                      // of its blocks, in order
    u64 nbytes = 0, nonce = 0;                   // of a plain value

private:
    bool hold_last(std::span<const KvKey> keys, u64 present, u64 first = 0);
    void walk_back(u64 blocks, u32 last, u64 first);
    u64 unexpired() const;                       // blocks before the first one whose time is over
    void cut(u64 blocks);
    void drop();
    KvPin pin_;
    KvHold hold_;
};

// Lets go of it; then it goes, and those before it that nobody else needs, but the first `keep`. How many blocks went.
u32 kv_evict(KvHit hit, u32 keep);

// Copies of some KiB each, many of them: past the caches when they are large together.
void kv_copy(char* to, const char* from, u64 bytes, bool past_caches);
void kv_copied();                                // after the last one
constexpr u64 KV_PAST_CACHES = 16 * MIB;

}  // namespace osf::kv
