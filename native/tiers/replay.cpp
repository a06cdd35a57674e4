#include "tiers/replay.hpp"

namespace osf::tiers {

TierReplay replay_tier_policy(u64 units, u64 capacity, std::span<const u32> trace) {
    if (capacity == 0 && !trace.empty()) throw Error(Code::bad_input, "a trace cannot be replayed in a memory of no units");
    enum : u8 { out, mapped, armed };
    TierPolicy policy(units, capacity);
    std::vector<u8> state(units, out);
    TierReplay result;
    for (u32 unit : trace) {
        if (unit >= units)
            throw Error(Code::bad_input, "unit " + std::to_string(unit) + " is not below " + std::to_string(units));
        if (state[unit] != out) {
            result.hits++;
            if (state[unit] == armed) {
                result.armed_touches++;
                state[unit] = mapped;
                policy.touched(unit);
            }
            continue;
        }
        result.misses++;
        while (policy.in_memory() >= capacity) {
            const TierPolicy::Choice choice = policy.next();
            if (choice.what == TierPolicy::Choice::none || state[choice.unit] == out)
                throw Error(Code::corrupt, "the policy names a unit that is not in memory");
            const bool arms = choice.what == TierPolicy::Choice::arm;
            state[choice.unit] = arms ? armed : out;
            if (arms) {
                result.armed++;
            } else {
                policy.left(choice.unit);
            }
        }
        policy.filled(unit, true);
        state[unit] = mapped;
    }
    return result;
}

}  // namespace osf::tiers
