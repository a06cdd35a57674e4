// One round of eviction, under the pool's lock. Blocks are doomed one by one, children before parents; then finish() looks at all pins
// and frees those that nobody holds. Two looks at the pins for a whole round.
#pragma once

#include "kv/pool.hpp"

namespace osf::kv {

class KvEviction {
public:
    explicit KvEviction(KvPool& pool, bool for_room = false);  // for room: the policy remembers what went
    bool pinned(u32 slot) const;                 // when the round began
    bool doom(u32 slot);                         // a leaf, if nobody holds it; its parent may be one now
    u32 finish();                                // how many are free now
    u32 count() const { return u32(doomed_.size()); }

private:
    void look(std::vector<u32>& pins) const;     // slots that somebody's pin names, in order
    KvPool& pool_;
    const bool for_room_;
    std::vector<u32> pins_, doomed_;
};

}  // namespace osf::kv
