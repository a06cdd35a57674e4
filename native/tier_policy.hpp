// Which units leave memory when it is full. The keeper sees no plain loads and stores, only what it is asked and the touches
// of units that it has taken out of the page tables on purpose (armed): the policy says which to arm, and when.
#pragma once

#include <deque>
#include <vector>

#include "base.hpp"

namespace osf {

// Not thread-safe: the engine calls it with its mutex held. A unit is a number below `units`; at most `capacity` are in memory.
class TierPolicy {
public:
    TierPolicy(u64 units, u64 capacity);

    void filled(u32 unit, bool wanted);  // it came into memory: by a touch or a request, or (wanted = false) by reading ahead
    void touched(u32 unit);              // in memory, and used just now: an armed unit's touch, or an explicit request
    void left(u32 unit);                 // it is out of memory: demoted after next() said so, or freed, or demoted on request

    struct Choice {
        enum What { none, arm, demote } what;
        u32 unit;
    };
    // What to do for one more free unit: arm some that may be next, until one is to be demoted. `none`: nothing is in memory.
    // The engine may find that a unit cannot leave now (it is pinned, or being read): then it calls kept().
    Choice next();
    void kept(u32 unit);                 // chosen to be demoted, but it stays: asked again much later
private: std::deque<u32> q_;
};

}  // namespace osf
