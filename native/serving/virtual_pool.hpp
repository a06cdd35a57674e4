// A KV pool without bytes: the real pool's code (kv/), so that what is found and what leaves is what the real one would find and evict. Its
// time is in blocks found and put, and so is virtual already. Each id of a trace is a block of one token. It lives in a space of its own that no
// other process finds.
#pragma once

#include <span>
#include <vector>

#include "kv/pool.hpp"

namespace osf::serving {

struct PoolShape {
    u32 slots = 0;          // blocks in all tiers
    u32 fast = 0;           // of them in the first tier: the last used ones
    u64 block_bytes = 0;    // of the real pool: how many blocks it puts at a time
};

class VirtualPool {
public:
    explicit VirtualPool(const PoolShape& shape, u64 seed = 1);

    struct Found {
        u32 blocks = 0, slow = 0;                // slow: of them not in the first tier
    };
    Found match(std::span<const u32> ids);       // counts as a use
    void put(std::span<const u32> ids);

    u64 asked = 0, found = 0, found_slow = 0, stored = 0, declined = 0, demoted = 0;
    u64 evicted() const { return pool_->stats().evicted_blocks; }
    u64 live() const { return pool_->stats().live; }

private:
    void use(u32 slot);

    std::shared_ptr<KvPool> pool_;
    u64 group_ = 1;
    u32 fast_ = 0, in_fast_ = 0;
    std::vector<u32> newer_, older_;             // a list of the slots in the first tier, by last use; both ends in the last element
    std::vector<bool> is_fast_;
};

}  // namespace osf::serving
