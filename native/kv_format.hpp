// A KV pool's bytes: one array of a Space (kind_pool), laid out here. Everything is an offset from the array's first byte.
//
//   0          KvHead      one page
//   tenants    KvTenant    64 bytes each, TENANTS of them
//   heads      u32         a power of two of buckets: slot + 1 of the first entry whose key begins with the bucket's bits, 0: none
//   entries    KvEntry     128 bytes a slot
//   tokens     u32         block_tokens a slot: what the block is of, for those who want to compare
//   queue      KvItem      16 bytes a slot: a heap of leaves by priority; derived
//   free       u32         4 bytes a slot: a stack of free slots; derived
//   data       bytes       stride a slot, page-aligned: the blocks
//
// A block is free, being filled by one member, live, or leaving. Entries are the truth: counts, queue and free stack are made again
// from them when a process died with the pool's lock. A live entry's parent is live; so who keeps a block keeps all before it.
#pragma once

#include <cstddef>

#include "layout.hpp"

namespace osf {

constexpr u32 KV_VERSION = 1;
constexpr char KV_MAGIC[8] = {'O', 'S', 'F', 'K', 'V', 'P', '1', 0};
constexpr u32 KV_TENANTS = 1024;
constexpr u32 NO_SLOT = ~0u;

enum KvState : u32 { kv_free, kv_filling, kv_live, kv_leaving };
enum KvFlags : u32 { kv_sticky = 1 };           // kept until somebody unpins it, whoever ends

struct KvKey {
    u64 words[4];
    bool operator==(const KvKey&) const = default;
};

struct KvHead {
    char magic[8];
    u32 version, entry_bytes;
    u64 block_bytes, stride;
    u32 slots, block_tokens, buckets, tenants;
    u64 tenants_at, heads_at, entries_at, tokens_at, queue_at, free_at, data_at, bytes;
    u64 check;                                  // of everything above
    alignas(64) Lock lock;                      // of everything but look-ups
    u32 free_count, queue_count, filling, live;
    u32 linking, pad;                           // slot + 1 of the block that was published last: perhaps not yet in its bucket
    u64 tended_ns;                              // when somebody last looked for what dead processes left, monotonic
    u64 soonest_ns;                             // nothing expires before; 0: nothing at all
    alignas(64) u64 clock;                      // blocks put so far: the time that priorities are in
    u64 values;                                 // plain values put so far: the next nonce
    alignas(64) u64 queries;
    u64 queried_blocks, hit_blocks;
    alignas(64) u64 stored_blocks;
    u64 evicted_blocks, declined_blocks, expired_blocks;
};
static_assert(sizeof(KvHead) <= PAGE && offsetof(KvHead, check) == 112 && offsetof(KvHead, lock) == 128 && offsetof(KvHead, linking) == 152 &&
              offsetof(KvHead, clock) == 192 && offsetof(KvHead, queries) == 256 && offsetof(KvHead, stored_blocks) == 320);

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
    u32 tenant, flags;
    // what changes with use
    u64 used;                                   // clock of the last use
    u32 hits, children;                         // children: derived
    u32 owner, queued;                          // owner: member that fills it; queued: the queue has an item of it
    u64 nbytes, nonce;                          // of a plain value, in its first block
    u64 unused[3];                              // room for a home host and a tier
};
static_assert(sizeof(KvEntry) == 128 && offsetof(KvEntry, expires_ns) == 48 && offsetof(KvEntry, used) == 64 && offsetof(KvEntry, nbytes) == 88);

struct KvItem {
    u64 priority;
    u32 slot, pad;
};

struct KvShape {
    u64 block_bytes;
    u32 block_tokens, slots;
};

// The head of a pool with these sizes, its check included.
KvHead kv_head(const KvShape& shape);

}  // namespace osf
