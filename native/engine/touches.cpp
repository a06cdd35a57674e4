// Touches, and what units that came to rest mean for who waits for them: touches among these.
#include <algorithm>

#include "engine/queue.hpp"

namespace osf::engine {

void Queue::touch(u32 client, u32 unit, bool write, u64 since_ns) {
    Viewer* viewer = viewers_.find(client);
    if (!viewer) return;
    units_.counts().faults++;
    const Tier tier = units_.tier(unit);
    if (in_memory(tier) && !(tier == Tier::writing && write)) return touch_there(*viewer, client, unit, tier, write);
    const bool first = since_ns != 0 && !waiters_.any(unit);
    waiters_.add(unit, {nullptr, Want::touch, client, write, since_ns});
    if (tier == Tier::writing && units_.durable) mover_.hasten(unit);  // a writer waits for a unit that is to be written: that one first
    if ((tier == Tier::flash || tier == Tier::empty) && first) {
        add(client, 0, Want::touch, unit, unit + 1, SOONEST);
        read_ahead(*viewer, client, unit, true);
    }
}

void Queue::touch_there(Viewer& viewer, u32 client, u32 unit, Tier tier, bool write) {
    TierCounts& counts = units_.counts();
    counts.minor_faults++;
    Local& local = units_.local(unit);
    if (local.armed) {
        local.armed = false;
        counts.armed_touched++;
        units_.policy.touched(unit);
    }
    const u32 count = also_shown(viewer, unit, tier, write);
    viewers_.show(viewer, unit, 1, write);
    if (count > 1) viewers_.show(viewer, unit + 1, count - 1, false);
    read_ahead(viewer, client, unit, false);
}

// Neighbours that are here too are shown at once; not those that are watched. How many, with the unit itself.
u32 Queue::also_shown(Viewer& viewer, u32 unit, Tier tier, bool write) {
    auto like = [&](u32 at, Tier one) { return at < units_.count && units_.tier(at) == one && !units_.local(at).armed; };
    u32 count = 1;
    if (!write)
        while (count < RUN && like(unit + count, tier) && !(units_.local(unit + count).mapped & viewer.bit)) count++;
    if (write && tier == Tier::clean && unit >= 2 && units_.tier(unit - 1) == Tier::dirty && units_.tier(unit - 2) == Tier::dirty)
        while (count < RUN && like(unit + count, Tier::clean) && !viewer.streams.expecting(unit + count))
            units_.set_unsure(unit + count++);  // who writes in order writes that next
    return count;
}

void Queue::read_ahead(Viewer& viewer, u32 client, u32 unit, bool missed) {
    Streams::Stream* stream = viewer.streams.expecting(unit);
    if (!stream) {
        if (missed && !about_to_be_read(client, unit)) viewer.streams.begin(unit, units_.tier(unit) == Tier::empty);
        return;
    }
    const Ahead ahead = viewer.streams.advance(*stream, units_, unit, missed);
    if (ahead.first == ahead.last) return;
    Request* request = add(client, 0, Want::ahead, ahead.first, ahead.last, AHEAD_PRIORITY);
    request->zeros = ahead.zeros;
    request->young = ahead.young;
    request->skip = ahead.skip;
    units_.counts().ahead_units += ahead.last - ahead.first;
}

// Has the reader come up with what is about to be read for it?
bool Queue::about_to_be_read(u32 client, u32 unit) const {
    return std::ranges::any_of(requests_, [&](const auto& one) {
        const Request& request = *one.second;
        return request.want == Want::ahead && request.client == client && unit >= request.next && unit < request.last;
    });
}

// Units that came to rest

void Queue::wake() {
    std::vector<Waiters::Rested>& news = waiters_.news();
    for (const Waiters::Rested& one : news) {  // nothing that is done for them moves a unit: there will be no more of these meanwhile
        if (!one.error.empty()) failed(one.unit, one.error, one.gone);
        if (!one.gone) rested(one.unit);
    }
    news.clear();
}

// Who cannot have what he waited for hears of it.
void Queue::failed(u32 unit, const std::string& why, bool gone) {
    for (Waiter& waiter : waiters_.take(unit)) {
        if (!waiter.request && gone) {
            viewers_.poison(waiter.client, unit);
        } else if (waiter.request && (gone || waiter.want == Want::demote || waiter.want == Want::flush)) {
            if (waiter.request->error.empty()) waiter.request->error = why;
            one_done(*waiter.request);
        } else {
            waiters_.add(unit, waiter);
        }
    }
}

void Queue::rested(u32 unit) {
    for (Waiter& waiter : waiters_.take(unit)) {
        if (waiter.request) {
            rested_for(waiter, unit);
            continue;
        }
        TierCounts& counts = units_.counts();
        if (in_memory(units_.tier(unit)) && waiter.since_ns) counts.wait_ns += now_ns() - waiter.since_ns, counts.minor_faults--;
        counts.faults--;  // it is counted again
        touch(waiter.client, unit, waiter.write, waiter.since_ns);
    }
}

void Queue::rested_for(Waiter& waiter, u32 unit) {
    Request& request = *waiter.request;
    const Tier tier = units_.tier(unit);
    Local& local = units_.local(unit);
    const bool again = once_more(waiter, unit);
    if (request.want == Want::demote && in_memory(tier) && local.pins && request.error.empty()) request.error = PINNED;
    if (again) {
        add(request.client, 0, request.fills() ? Want::touch : request.want, unit, unit + 1, SOONEST);
        return waiters_.add(unit, waiter);
    }
    const bool there = request.fills() && in_memory(tier);
    const bool changes = there && request.want == Want::pin && local.plain_pins && tier == Tier::clean;
    if (changes) units_.set_unsure(unit);    // and is shown anew: writable
    if (there && request.shows(unit, unit + 1)) {
        Viewer* viewer = viewers_.find(request.client);
        if (viewer && (changes || !(local.mapped & viewer->bit))) viewers_.show(*viewer, unit, 1, false);
    }
    one_done(request);
}

// It was on its way out, or has come back: once more, as a request of its own that the first one waits for.
bool Queue::once_more(Waiter& waiter, u32 unit) {
    const Request& request = *waiter.request;
    const Tier tier = units_.tier(unit);
    if (request.want == Want::discard) return tier != Tier::empty;
    if (!request.error.empty()) return false;
    if (request.want == Want::demote)        // who uses it all the time keeps it
        return request.id && (tier == Tier::clean || tier == Tier::dirty) && !units_.local(unit).pins && ++waiter.tries <= 3;
    return request.fills() && !in_memory(tier) && request.want != Want::ahead && request.want != Want::touch;
}

}  // namespace osf::engine
