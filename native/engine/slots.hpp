// Which slots of the flash files are taken. Without durability a unit's slot is its own number. Otherwise what the last commit
// refers to is never written over, nor what the next one will: a slot is free when no unit, no commit and none that is under
// way refers to it.
//
// With the engine's mutex, all of it.
#pragma once

#include <vector>

#include "tiers/words.hpp"

namespace osf::engine {

class Slots {
public:
    explicit Slots(const TierWords& words);
    void take_all_used();                        // by units, as their words say

    u32 take(u32 unit, u32 count);               // NO_SLOT: none are free
    void release(u32 slot);                      // no unit refers to it any more
    bool few() const;                            // a commit should come soon: it gives back those of older versions

    void committed(u32 slot) { add(kept_, slot), add(taken_, slot); }  // found in the last commit
    void committing(u32 slot) { add(kept_next_, slot); }               // will be in the next one
    void commit_done() { keep(kept_next_); }
    void commit_failed(bool in_doubt);           // in doubt: a power cut may bring the last one, or this

private:
    using Bits = std::vector<u64>;
    static void add(Bits& bits, u32 slot) { bits[slot / 64] |= 1ull << (slot % 64); }
    static bool has(const Bits& bits, u64 slot) { return bits[slot / 64] >> (slot % 64) & 1; }
    bool run_is_free(u64 slot, u32 count) const;
    void keep(Bits kept);

    const TierWords& words_;
    const u64 total_;
    const bool durable_;
    Bits taken_, kept_, kept_next_;              // the latter two, of durable spaces: of the last commit, and of that under way
    u64 free_ = 0, hint_ = 0;
};

}  // namespace osf::engine
