// A pool's blocks in a space with a flash tier (tiers/words.hpp). Everything before them is always in memory; they come and go by units
// that neighbouring blocks may share. With faults a touch brings them back, and what is done here only saves waiting; without,
// what is used must be held.
#pragma once

#include <span>
#include <vector>

#include "base/base.hpp"

namespace osf::tiers {
class TierClient;
}

namespace osf::kv {

class KvPool;

// Bytes that are held in memory.
class KvHold {
public:
    KvHold() = default;
    KvHold(KvHold&& other) noexcept : tiers_(other.tiers_), pins_(std::move(other.pins_)) { other.pins_.clear(); }
    KvHold(const KvHold&) = delete;
    KvHold& operator=(const KvHold&) = delete;
    ~KvHold() { drop(); }

    void take(TierClient& tiers, const void* at, u64 bytes);     // waits
    u64 take(const KvPool& pool, std::span<const u32> slots);    // the first of them, as many as there is room for; how many
    void drop() noexcept;

private:
    TierClient* tiers_ = nullptr;                // of the pool's space, which outlives this
    std::vector<u64> pins_;
};

struct KvPlaces { u32 dram, flash; };            // live blocks wholly in memory; others

}  // namespace osf::kv
