#include "tiers/policy.hpp"

#include <algorithm>

namespace osf::tiers {

namespace {

// Chosen in simulation, for the traces of bench/tiers_policy.py together; none of them is critical.
constexpr u32 NIL = ~0u;
constexpr u64 WINDOW_ONCE = 3, WINDOW_AGAIN = 8;  // one in so many units of memory may be armed in each queue
constexpr u64 YOUNG = 64;        // a unit is new until one in so many units of memory came after it
constexpr u32 MOST_CREDIT = 7, CREDIT = 2;
constexpr u64 STEP = 8;          // an error at the cost of `again` weighs more: what is there has shown that it is used
constexpr u32 ARMS = 4;          // for each demotion: the window grows slowly, nobody waits for all of it
constexpr u64 AHEAD_ROOM = 8, AHEAD_LIFE = 4;  // units read ahead go first when they are more, or older, than this part of memory
constexpr u64 WAIT = 8;          // what was kept is asked again after fills of this part of memory

// A fault at an armed unit takes a tenth of the time of a miss: 0.3 of them for each demotion are 3 %. What is armed when the
// budget is used up may still be touched, and is paid back before anything else is armed.
constexpr long BUDGET_A_DEMOTION = 3, COST = 10;

}  // namespace

TierPolicy::TierPolicy(u64 units, u64 capacity)
    : units_(units), capacity_(std::max<u64>(capacity, 1)), border_(capacity_ / 10), budget_(long(capacity_) + COST) {
    if (units >= NIL) throw Error(Code::bad_input, std::to_string(units) + " units are more than a tier can have");
    for (Queue& queue : queues_) queue = {NIL, NIL, NIL, 0, 0};
}

void TierPolicy::append(Where where, u32 number) {
    Unit& unit = units_[number];
    Queue& queue = queues_[where];
    unit.where = where;
    unit.older = queue.newest;
    unit.newer = NIL;
    (queue.newest == NIL ? queue.oldest : units_[queue.newest].newer) = number;
    queue.newest = number;
    queue.size++;
}

void TierPolicy::unlink(u32 number) {
    Unit& unit = units_[number];
    Queue& queue = queues_[unit.where];
    if (unit.armed) {
        if (queue.edge == number) queue.edge = unit.older;
        queue.armed--;
        unit.armed = 0;
    }
    (unit.older == NIL ? queue.oldest : units_[unit.older].newer) = unit.newer;
    (unit.newer == NIL ? queue.newest : units_[unit.newer].older) = unit.older;
    queue.size--;
}

void TierPolicy::filled(u32 number, bool wanted) {
    Unit& unit = units_[number];
    if (unit.where != out) return touched(number);
    fills_++;
    in_memory_++;
    // How long a ghost lasts: what left `again` is remembered longer, for it only moves the border.
    if (age(unit) > (unit.repeated ? capacity_ : capacity_ * 3 / 4)) unit.ghost = 0;
    unit.stamp = fills_;
    unit.used = 0;
    if (wanted) {
        enter(number);
    } else {
        append(ahead, number);
    }
    const u32 longest = queues_[waiting].oldest;
    if (longest != NIL && age(units_[longest]) > capacity_ / WAIT) put_back(longest);
}

// Its first use in this stay. One that comes back although it had been used again begins anew: else a scan that passes by
// from time to time, or a loop, would keep what it once had there.
void TierPolicy::enter(u32 number) {
    Unit& unit = units_[number];
    if (unit.ghost) move_border(unit.repeated);
    unit.repeated = unit.ghost && !unit.repeated;
    unit.ghost = 0;
    unit.credit = 0;
    unit.used = 1;
    append(unit.repeated ? again : once, number);
}

void TierPolicy::move_border(bool to_again) {
    const u64 least = capacity_ / 100;
    if (to_again) {
        border_ = std::max(least, border_ - std::min(border_, STEP));
    } else {
        border_ = std::min(capacity_, border_ + 1);
    }
}

void TierPolicy::touched(u32 number) {
    Unit& unit = units_[number];
    if (unit.where == out) return;
    if (unit.armed) budget_ -= COST;
    if (!unit.used) {
        unlink(number);
        enter(number);
        return;
    }
    // The use that brought it, or more of the same: nothing is learned. (A young unit is never armed.)
    if (unit.where == once && age(unit) <= capacity_ / YOUNG) return;
    if (unit.repeated) unit.credit = std::min(MOST_CREDIT, unit.credit + CREDIT) & MOST_CREDIT;
    unit.repeated = 1;
    if (unit.where == waiting) return;
    unlink(number);
    append(again, number);
}

void TierPolicy::left(u32 number) {
    Unit& unit = units_[number];
    if (unit.where == out) return;
    unit.ghost = unit.where == leaving && unit.used;
    unlink(number);
    unit.where = out;
    unit.stamp = fills_;
    in_memory_--;
}

void TierPolicy::kept(u32 number) {
    Unit& unit = units_[number];
    if (unit.where != leaving) return;  // it was touched meanwhile, and is in another queue
    unlink(number);
    unit.stamp = fills_;
    append(waiting, number);
}

void TierPolicy::put_back(u32 number) {
    Unit& unit = units_[number];
    unlink(number);
    unit.stamp = fills_;
    append(!unit.used ? ahead : unit.repeated ? again : once, number);
}

TierPolicy::Where TierPolicy::pick() const {
    const Queue& unread = queues_[ahead];
    if (unread.size && (unread.size > capacity_ / AHEAD_ROOM || age(units_[unread.oldest]) > capacity_ / AHEAD_LIFE)) return ahead;
    if (queues_[once].size > border_) return once;
    for (Where where : {again, once, ahead})
        if (queues_[where].size) return where;
    return leaving;
}

// The next unit to be armed in this queue, or NIL. Credit is spent here: each turn of the loop was paid for by a touch.
u32 TierPolicy::to_arm(Where from) {
    const Queue& queue = queues_[from];
    for (;;) {
        const u32 number = queue.armed ? units_[queue.edge].newer : queue.oldest;
        if (number == NIL || (from != once && from != again)) return NIL;
        Unit& unit = units_[number];
        if (unit.credit) {
            unit.credit--;
            unlink(number);
            append(from, number);
            continue;
        }
        const bool room = queue.armed < std::max<u64>(1, capacity_ / (from == once ? WINDOW_ONCE : WINDOW_AGAIN)) && arms_ < ARMS && budget_ > 0;
        return room && age(unit) > capacity_ / YOUNG ? number : NIL;
    }
}

TierPolicy::Choice TierPolicy::next() {
    const Where from = pick();
    Queue& queue = queues_[from];
    if (!queue.size) {
        while (queues_[waiting].size) put_back(queues_[waiting].oldest);
        return {Choice::none, 0};
    }
    if (const u32 number = to_arm(from); number != NIL) {
        units_[number].armed = 1;
        queue.edge = number;
        queue.armed++;
        arms_++;
        return {Choice::arm, number};
    }
    const u32 number = queue.oldest;
    unlink(number);
    append(leaving, number);
    arms_ = 0;
    budget_ = std::min(budget_ + BUDGET_A_DEMOTION, long(capacity_) + COST);
    return {Choice::demote, number};
}

void TierPolicy::check() const {
    u64 inside = 0;
    for (const Unit& unit : units_) inside += unit.where != out;
    u64 linked = 0;
    for (int where = ahead; where < QUEUES; where++) {
        const Queue& queue = queues_[where];
        u32 last = NIL, size = 0, armed = 0, edge = NIL;
        for (u32 at = queue.oldest; at != NIL && size <= units_.size(); last = at, at = units_[at].newer, size++) {
            const Unit& unit = units_[at];
            if (unit.where != where || unit.older != last) throw Error(Code::corrupt, "a unit is in the wrong queue");
            if (unit.armed && armed != size) throw Error(Code::corrupt, "an armed unit is newer than one that is not");
            if (unit.armed) armed++, edge = at;
        }
        if (size != queue.size || last != queue.newest || armed != queue.armed || (armed && edge != queue.edge))
            throw Error(Code::corrupt, "a queue's counts are wrong");
        linked += size;
    }
    if (linked != inside || inside != in_memory_) throw Error(Code::corrupt, "the units in memory are counted wrongly");
}

}  // namespace osf::tiers
