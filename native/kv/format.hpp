// A KV pool's bytes: one array of a Space (kind_pool), laid out here. Everything is an offset from the array's first byte.
//
//   0          KvHead      one page
//   tenants    KvTenant    64 bytes each, TENANTS of them
//   heads      u32         a power of two of buckets: slot + 1 of the first entry whose key begins with the bucket's bits, 0: none
//   entries    KvEntry     128 bytes a slot
//   tokens     u32         block_tokens a slot: what the block is of, for those who want to compare
//   leaves     u32         4 bytes a slot: the slots of the leaves, in any order; derived
//   free       u32         4 bytes a slot: a stack of free slots; derived
//   tables     KvTables    what the policy has learned: a hint
//   ghosts     KvGhost     16 bytes each, 16 a slot, in sets of four: blocks that went, or were not taken, for want of room; hints
//   data       bytes       stride a slot, page-aligned, larger ones by 64 KiB: the blocks. In a space with a flash tier they may be there
//
// A block is free, being filled by one member, live, or leaving. Entries are the truth: counts, leaves and free stack are made again
// from them when a process died with the pool's lock. Hints say only which leaf goes first, and
// how far a long prompt may crowd out others: nothing else depends on them, whatever they hold. A live entry's parent is live; so who keeps a block keeps all before it.
#pragma once

#include <cstddef>

#include "base/layout.hpp"

namespace osf::kv {

constexpr u32 KV_VERSION = 3;
constexpr char KV_MAGIC[8] = {'O', 'S', 'F', 'K', 'V', 'P', '1', 0};
constexpr u32 KV_TENANTS = 1024;
constexpr u32 KV_FETCHERS = 64;
constexpr u32 KV_CLASSES = 70, KV_AGES = 38;    // of kv/policy.hpp
constexpr u32 KV_GHOSTS = 16, KV_WAYS = 4;      // ghosts a slot; ghosts in a set, a cache line

enum KvState : u32 { kv_free, kv_filling, kv_live, kv_leaving };
enum KvFlags : u16 { kv_sticky = 1 };           // kept until somebody unpins it, whoever ends

struct KvKey {
    u64 words[4];
    bool operator==(const KvKey&) const = default;
};

struct KvHead {
    char magic[8];
    u32 version, entry_bytes;
    u64 block_bytes, stride;
    u32 slots, block_tokens, buckets, tenants;
    u64 tenants_at, heads_at, entries_at, tokens_at, leaves_at, free_at, tables_at, ghosts_at, data_at, bytes;
    u64 id;                                     // random: a pool that is made anew in the same place has another
    u64 check;                                  // of everything above
    alignas(64) Lock lock;                      // of everything but look-ups
    u32 free_count, leaf_count, filling, live;
    u32 linking, pad;                           // slot + 1 of the block that was published last: perhaps not yet in its bucket
    u64 tended_ns;                              // when somebody last looked for what dead processes left, monotonic
    u64 soonest_ns;                             // nothing expires before; 0: nothing at all
    u64 learn_at;                               // clock at which the policy learns next: a hint
    alignas(64) u64 clock;                      // blocks found and put so far: the time that ages are in
    u64 values;                                 // plain values put so far: the next nonce
    alignas(64) u64 queries;
    u64 queried_blocks, hit_blocks;
    alignas(64) u64 stored_blocks;
    u64 evicted_blocks, declined_blocks, expired_blocks, fetched_blocks;
    alignas(64) Lock turns[KV_FETCHERS];           // to fetch from other hosts: by the first word of the first key that is missing
};
static_assert(sizeof(KvHead) <= PAGE && offsetof(KvHead, check) == 136 && offsetof(KvHead, lock) == 192 && offsetof(KvHead, linking) == 216 &&
              offsetof(KvHead, clock) == 256 && offsetof(KvHead, queries) == 320 && offsetof(KvHead, stored_blocks) == 384);

struct KvTenant {
    u64 id;                                     // of its name, 0: unused
    u32 quota, used;                            // blocks; quota 0: none. used is derived
    char name[48];                              // for people, cut
};
static_assert(sizeof(KvTenant) == 64);

struct KvEntry {
    // what a look-up reads: written once while filling, but for state, next, expires_ns and flags
    u64 key[4];
    u32 state, next;                            // next: slot + 1 in its bucket
    u32 parent, position;                       // parent: slot + 1, 0 for the first block; position: blocks before it
    u64 expires_ns;                             // since 1970; 0: never
    u16 tenant, flags;
    u32 life;                                   // odd while key and next change: who reads them reads it before and after
    // what changes with use
    u64 used;                                   // clock of the last use; not of one right after another
    u32 hits, children;                         // children: derived
    u32 owner, leaf;                            // owner: member that fills it; leaf: 1 + its place among the leaves, 0: none; derived
    u64 nbytes, nonce;                          // of a plain value, in its first block
    u32 habit, pad;                             // what the policy knows of its uses, see kv/policy.hpp
    u64 unused[2];                              // room for a home host and a tier
};
static_assert(sizeof(KvEntry) == 128 && offsetof(KvEntry, expires_ns) == 48 && offsetof(KvEntry, used) == 64 && offsetof(KvEntry, nbytes) == 88);

struct KvTables {
    float recent[KV_CLASSES][KV_AGES];          // blocks of a class used again at an age since the policy last learned
    float reused[KV_CLASSES][KV_AGES];          // and before, fading
    float squares[KV_CLASSES][KV_AGES];         // the squares of what was recent each time, fading
    float values[KV_CLASSES][KV_AGES];          // what one of that class and age is worth
    float others[KV_CLASSES][KV_AGES];          // those that came to an age and were not used: see kv/learn.cpp
};

struct KvGhost {
    u64 tag;                                    // the second word of its key | 1; 0: none
    u64 what;                                   // bits 0 to 31 the clock at its last use, to 47 hits, to 63 habit; each cut
};
static_assert(sizeof(KvGhost) == 16);

struct KvShape {
    u64 block_bytes;
    u32 block_tokens, slots;
};

// The head of a pool with these sizes, without id and check.
KvHead kv_head(const KvShape& shape);
// Where the blocks of the pool in these bytes begin; 0: there is none, or not yet.
u64 kv_blocks_at(const char* pool, u64 nbytes);

}  // namespace osf::kv
