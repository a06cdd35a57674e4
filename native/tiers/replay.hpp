// A trace of uses through the policy, without memory or disk: what bench/tiers_policy.py and the tests ask.
#pragma once

#include <span>

#include "tiers/policy.hpp"

namespace osf::tiers {

struct TierReplay {
    u64 hits = 0, misses = 0;
    u64 armed = 0, armed_touches = 0;  // a touch of an armed unit costs the program a minor fault
};

// Throws where the policy names a unit that is not in memory, or none while there are some.
TierReplay replay_tier_policy(u64 units, u64 capacity, std::span<const u32> trace);

}  // namespace osf::tiers
