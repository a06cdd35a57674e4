#include "engine/slots.hpp"

#include <algorithm>
#include <bit>

#include "tiers/flash.hpp"

namespace osf::engine {

Slots::Slots(const TierWords& words)
    : words_(words), total_(words.head().slots), durable_(words.head().durable),
      taken_(div_up(total_, 64)), kept_(durable_ ? taken_.size() : 0), kept_next_(kept_) {}

void Slots::take_all_used() {
    for (u64 unit = 0; unit < words_.head().units; unit++)
        if (const u32 slot = flash_slot(load(words_.at(unit).word)); slot != NO_SLOT) add(taken_, slot);
    free_ = total_;
    for (const u64 word : taken_) free_ -= u64(std::popcount(word));
}

bool Slots::few() const { return durable_ && free_ < words_.head().capacity + 64; }

bool Slots::run_is_free(u64 slot, u32 count) const {
    if (slot + count > total_ || Flash::together(slot, count) != count) return false;
    for (u64 at = slot; at < slot + count; at++)
        if (has(taken_, at)) return false;
    return true;
}

u32 Slots::take(u32 unit, u32 count) {
    if (!durable_) return Flash::together(unit, count) == count ? unit : NO_SLOT;
    for (u64 tried = 0, slot = hint_; tried < total_; tried++, slot++) {
        if (slot >= total_) slot = 0;
        if (taken_[slot / 64] == ~0ull && slot % 64 == 0) {
            tried += 63, slot += 63;
            continue;
        }
        if (!run_is_free(slot, count)) continue;
        for (u64 at = slot; at < slot + count; at++) add(taken_, u32(at));
        free_ -= count;
        hint_ = slot + count;
        return u32(slot);
    }
    return NO_SLOT;
}

void Slots::release(u32 slot) {
    if (!durable_) return;  // it is the unit's own
    if (has(kept_, slot) || has(kept_next_, slot)) return;
    free_ += has(taken_, slot);
    taken_[slot / 64] &= ~(1ull << (slot % 64));
}

// These are kept from now on; of those that were kept, what nothing refers to is free.
void Slots::keep(Bits kept) {
    Bits used = kept;
    for (u64 unit = 0; unit < words_.head().units; unit++)
        if (const u32 slot = flash_slot(load(words_.at(unit).word)); slot != NO_SLOT) add(used, slot);
    for (size_t at = 0; at < taken_.size(); at++) {
        const u64 gone = (kept_[at] | kept_next_[at]) & ~used[at] & taken_[at];
        taken_[at] &= ~gone;
        free_ += u64(std::popcount(gone));
    }
    kept_ = std::move(kept);
    std::fill(kept_next_.begin(), kept_next_.end(), 0);
}

void Slots::commit_failed(bool in_doubt) {
    Bits both = kept_;
    for (size_t at = 0; in_doubt && at < both.size(); at++) both[at] |= kept_next_[at];
    keep(std::move(both));
}

}  // namespace osf::engine
