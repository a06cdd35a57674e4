// Which units leave memory when it is full. The keeper sees no plain loads and stores, only what it is asked and the touches
// of units that it has taken out of the page tables on purpose (armed): the policy says which to arm, and when.
//
// Two queues, of units used once and of units used again, with a border between them that moves when units come back soon after
// they left: ARC's idea (Megiddo and Modha, FAST 2003), with S3-FIFO's (Yang et al., SOSP 2023) of queues in which nothing moves at
// a use. Only the oldest units of a queue are armed, so a use is seen near the end of a queue or not at all. Units that were seen
// used are let pass unarmed for some rounds: that is most of what frequency tells, and keeps faults rare.
// docs/design/tiers.md ("Which units leave memory") has what was compared.
#pragma once

#include <vector>

#include "base/base.hpp"

namespace osf::tiers {

// Not thread-safe: the engine calls it with its mutex held. A unit is a number below `units`; at most `capacity` are in memory.
// 16 bytes a unit, and no call allocates. Every call takes constant time, amortised.
class TierPolicy {
public:
    TierPolicy(u64 units, u64 capacity);

    // It came into memory: by a touch or a request, or (wanted = false) by reading ahead. A unit that was read ahead counts as
    // armed: the engine leaves it out of the page tables, and calls touched() at its first use.
    void filled(u32 unit, bool wanted);
    void touched(u32 unit);              // in memory, and used just now: an armed unit's touch, or an explicit request
    void left(u32 unit);                 // it is out of memory: demoted after next() said so, or freed, or demoted on request

    struct Choice {
        enum What { none, arm, demote } what;
        u32 unit;
    };
    // What to do for one more free unit: arm some that may be next, until one is to be demoted. `none`: nothing is in memory, or
    // all that is was kept(); the call after that one asks for the kept ones again. Several units may be on their way out: one
    // that was named is not named again before left(), kept() or touched(), unless there is no other.
    // The engine may find that a unit cannot leave now (it is pinned, or being read): then it calls kept().
    Choice next();
    void kept(u32 unit);                 // chosen to be demoted, but it stays: asked again much later

    u64 in_memory() const { return in_memory_; }
    void check() const;                  // for tests: throws where a link or a count is wrong

private:
    // Where a unit is. `leaving`: next() named it. `waiting`: it could not leave, and waits until it is asked again.
    enum Where : u8 { out, ahead, once, again, leaving, waiting, QUEUES };

    struct Unit {
        u32 older, newer;     // in its queue
        u32 stamp = 0;        // the fill that brought it, or during which it left or was kept
        Where where = out;
        u8 credit : 3 = 0;    // how often it passes the end of `again` unarmed
        u8 armed : 1 = 0;     // in `once` or `again`, and watched
        u8 used : 1 = 0;      // 0: read ahead, and not touched yet
        u8 repeated : 1 = 0;  // used more than once; for a ghost: in its last stay
        u8 ghost : 1 = 0;     // demoted by us a short while ago, so that its coming back tells something
    };
    struct Queue {
        u32 oldest, newest;
        u32 edge;             // the newest armed unit: all that are older are armed too
        u32 size, armed;
    };

    void append(Where where, u32 number);
    void unlink(u32 number);
    void enter(u32 number);
    void put_back(u32 number);
    void move_border(bool to_again);
    u32 age(const Unit& unit) const { return fills_ - unit.stamp; }
    Where pick() const;
    u32 to_arm(Where from);

    std::vector<Unit> units_;
    Queue queues_[QUEUES];
    u64 capacity_, in_memory_ = 0;
    u64 border_;              // `once` gives when it has more units than this
    u32 fills_ = 0;           // the clock. It may wrap: only differences count, and a wrong one is a wrong guess
    u32 arms_ = 0;            // since the last demotion
    long budget_;             // tenths of armed touches that may still be caused
};

}  // namespace osf::tiers
