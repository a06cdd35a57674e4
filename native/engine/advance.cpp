// What the queue begins for requests, in their order, as far as there is room.
#include <algorithm>

#include "engine/queue.hpp"

namespace osf::engine {

constexpr u32 DEPTH = 10;                    // reads under way, or about to be

void Queue::dispatch() {
    wake();
    if (waits_) return;
    do {  // what is begun may want more to be done first
        added_ = false;
        begin_requests();
    } while (added_);
    if (units_.room() < units_.low_water()) make_room(0);
    if (!mover_.under_way()) quiet.notify_all();
}

void Queue::catch_up() {
    wake();
    if (added_) dispatch();
}

void Queue::make_room(u64 wanted) {
    mover_.make_room(wanted);
    wake();
}

void Queue::begin_runs(std::vector<u32>& units) {
    mover_.begin_runs(units);
    wake();
}

void Queue::begin_requests() {
    for (auto at = requests_.begin(); at != requests_.end();) {
        Request& request = *at->second;
        const bool free = advance(request);
        if (request.next == request.last) {
            request.begun = true;
            begun_.emplace(&request, std::move(at->second));
            at = requests_.erase(at);
            if (request.left == 0) finish(request);
        } else if (free) {
            break;  // enough is under way
        } else {
            ++at;
        }
    }
}

bool Queue::advance(Request& request) {
    switch (request.want) {
        case Want::discard: return advance_discard(request), true;
        case Want::demote: return advance_demote(request);
        case Want::flush:
            request.next = request.last;
            flushes_.push_back(&request);
            moment_.asked.notify_all();
            return true;
        default: break;
    }
    for (;;) {
        const bool free = advance_fill(request);
        if (request.next < request.last || request.more.empty()) return free;
        request.first = request.next = request.more.front().first;
        request.last = request.more.front().last;
        request.more.pop_front();
    }
}

void Queue::pass(Request& request) {
    request.next++;
    one_done(request);
}

// Into memory

bool Queue::advance_fill(Request& request) {
    while (request.next < request.last) {
        const Tier tier = units_.tier(request.next);
        if (in_memory(tier)) {
            pass_in_memory(request);
        } else if (tier == Tier::flash || (tier == Tier::empty && (request.want == Want::touch || request.want == Want::pin || request.zeros))) {
            if (const Step step = begin_fill(request); step != Step::next) return step == Step::enough;
        } else if (tier == Tier::empty) {
            pass(request);
        } else {
            wait_for(request, request.next++);
        }
    }
    return true;
}

// Units that are there already.
void Queue::pass_in_memory(Request& request) {
    const u32 unit = request.next;
    const Tier tier = units_.tier(unit);
    u32 end = unit + 1;
    while (end < request.last && end - unit < RUN && units_.tier(end) == tier) end++;
    const bool explicitly = request.want == Want::prefetch || request.want == Want::pin;
    for (u32 at = unit; at < end; at++) {
        if (explicitly) units_.counts().asked++, units_.counts().asked_there++, units_.policy.touched(at);
        if (request.want != Want::pin || !units_.local(at).plain_pins) continue;
        // Who writes without faults makes it dirty, whether he will or not.
        if (tier == Tier::writing) units_.local(at).unseen = true;
        if (tier == Tier::clean) units_.set_unsure(at);
    }
    if (request.shows(unit, end)) viewers_.show(request.client, unit, end - unit);
    request.next = end;
    for (u32 at = unit; at < end; at++) one_done(request);
}

Queue::Step Queue::begin_fill(Request& request) {
    if (mover_.under_way() >= DEPTH && request.want != Want::touch) return Step::enough;
    const u32 unit = request.next;
    u64 most = std::min<u64>(RUN, request.last - unit), free = most;
    const bool vacant = units_.local(unit).vacant;
    if (!vacant)
        if (const Step step = find_room(request, most, free); step != Step::next) return step;
    const u64 word = units_.word(unit);
    const u32 count = alike(unit, std::min(most, free)), slot = flash_slot(word);
    const bool explicitly = request.want == Want::prefetch || request.want == Want::pin;
    for (u32 at = unit; at < unit + count; at++) {
        if (explicitly) units_.counts().asked++;
        units_.set_tier(at, Tier::filling);
        if (vacant) units_.set_vacant(at, false);
        wait_for(request, at);
    }
    request.next += count;
    const auto kind = tier_of(word) == Tier::empty ? Job::Kind::provide : Job::Kind::fill;
    mover_.begin({kind, unit, count, slot, vacant, request.want, request.client, request.skip, request.young});
    return Step::next;
}

u32 Queue::alike(u32 unit, u64 most) const {
    const u64 word = units_.word(unit);
    const u32 slot = flash_slot(word);
    const bool vacant = units_.local(unit).vacant;
    if (slot != NO_SLOT) most = Flash::together(slot, most);
    auto next = [&](u32 at, u32 expected) {
        const u64 is = units_.word(at);
        return tier_of(is) == tier_of(word) && units_.local(at).vacant == vacant && flash_slot(is) == expected;
    };
    u32 count = 1;
    while (count < most && next(unit + count, slot == NO_SLOT ? NO_SLOT : slot + count)) count++;
    return count;
}

// How many of so many units may come into memory now.
Queue::Step Queue::find_room(Request& request, u64 most, u64& free) {
    const bool touch = request.want == Want::touch;
    if (units_.room() < most + (touch ? 0 : units_.low_water() / 2)) make_room(most);
    free = units_.room();
    if (free) return Step::next;
    if (request.want == Want::ahead) {       // not worth that anybody leaves
        stop(request, "");
        return Step::enough;
    }
    if (units_.evicting || moment_.wanted()) return Step::blocked;
    if (touch) {                             // it cannot fail: more memory than was meant is better than an end
        free = most;
        return Step::next;
    }
    if (!viewers_.settled()) return Step::blocked;
    if (!request.looked) viewers_.drop_dead_pins();
    request.looked = true;
    make_room(most);                         // those that it passed over are asked again
    if (units_.evicting || mover_.under_way()) return Step::blocked;
    const bool refused = units_.failed_ns && now_ns() - units_.failed_ns < 2'000'000'000;
    request.error = refused ? std::string("flash:") + units_.words.head().trouble
                            : "no_room:nothing in dram can make room: what is there is pinned, or must stay";
    stop(request, "");
    return Step::enough;
}

// Out of memory

bool Queue::advance_demote(Request& request) {
    std::vector<u32> leaving;
    bool settled = true;
    while (settled && request.next < request.last && mover_.under_way() + leaving.size() / RUN < DEPTH) {
        const Tier tier = units_.tier(request.next);
        if (tier == Tier::flash || tier == Tier::empty) pass(request);
        else if (tier != Tier::clean && tier != Tier::dirty) wait_for(request, request.next++);
        else if ((settled = viewers_.settled())) demote_one(request, leaving);
    }
    begin_runs(leaving);
    return settled;
}

void Queue::demote_one(Request& request, std::vector<u32>& leaving) {
    const u32 unit = request.next;
    Local& local = units_.local(unit);
    if (local.pins && !request.looked) {
        request.looked = true;
        viewers_.drop_dead_pins();
    }
    if (local.pins || units_.unmovable(unit)) {
        if (local.pins) request.error = PINNED;
        pass(request);  // what shares a unit with something that must stay, stays
        return rested(unit);  // who tries again waits for it
    }
    wait_for(request, request.next++);
    local.stay = true;
    if (!mover_.begin_leaving(unit, leaving)) {
        local.stay = false;
        rested(unit);
    }
}

void Queue::advance_discard(Request& request) {
    while (request.next < request.last) {
        const u32 unit = request.next;
        const u64 word = units_.word(unit);
        const Tier tier = tier_of(word);
        if ((tier == Tier::flash && !units_.local(unit).vacant) || tier == Tier::empty) {
            mover_.forget_slot(unit);
            pass(request);
            rested(unit);
        } else if (tier == Tier::clean || tier == Tier::dirty || tier == Tier::flash) {
            begin_discard(request);
        } else {
            wait_for(request, request.next++);
        }
    }
}

void Queue::begin_discard(Request& request) {
    const u32 unit = request.next;
    auto here = [&](u32 at) { return units_.tier(at) == Tier::clean || units_.tier(at) == Tier::dirty || units_.local(at).vacant; };
    u32 end = unit;
    for (; end < request.last && end - unit < RUN && here(end); end++) {
        if (units_.local(end).vacant) units_.set_vacant(end, false);
        units_.set_tier(end, Tier::discarding);
        wait_for(request, end);
        units_.evicting++;
    }
    request.next = end;
    mover_.begin({Job::Kind::discard, unit, end - unit});
}

}  // namespace osf::engine
