// What is asked for: in which order it is begun, and what waits for what.
#include "tiers/engine.hpp"

#include <algorithm>

namespace osf::tiers {

constexpr u32 DEPTH = 10;                    // reads under way, or about to be
constexpr const char* PINNED = "not_permitted:a part of it is pinned in dram; release the pins first, those of views in processes without faults among them";

TierEngine::Request* TierEngine::add(u32 client, u64 id, Want want, u32 first, u32 last, int priority) {
    auto request = std::make_unique<Request>();
    request->sequence = ++sequence_;
    request->id = id;
    request->client = client;
    request->want = want;
    request->first = request->next = first;
    request->last = last;
    request->left = last - first;
    request->priority = priority;
    Request* result = request.get();
    if (auto found = clients_.find(client); found != clients_.end()) found->second.requests.insert(result);
    requests_.emplace(std::pair(-priority, request->sequence), std::move(request));
    added_ = true;
    return result;
}

void TierEngine::ask(u32 number, u64 id, Want want, u64 address, u64 bytes, int priority) {
    std::lock_guard guard(mutex_);
    Attached& client = clients_.at(number);
    auto refuse = [&](const std::string& why) { client.is.answer(id, false, why); };
    if (want == Want::pin && client.is.pins_to_tell) client.is.pins_to_tell--;
    if (want == Want::flush) {
        if (!durable_) return refuse("not_permitted:the space is not durable: there is nothing that flush() would promise; make it with durable=True");
        add(number, id, want, 0, 1, priority);
        return dispatch();
    }
    if (address < data_at_ || address + bytes > data_at_ + units_ * UNIT || address + bytes < address) return refuse("bad_address:the range is outside the data of the space");
    // What is forgotten must be whole units; everything else takes the units that the bytes are in.
    const bool inner = want == Want::discard;
    u32 first = u32(inner ? div_up(address - data_at_, UNIT) : (address - data_at_) / UNIT);
    u32 last = u32(inner ? (address + bytes - data_at_) / UNIT : div_up(address + bytes - data_at_, UNIT));
    if (first >= last || !bytes) return client.is.answer(id, true, "");
    if (want == Want::prefetch)
        if (const std::string why = too_much(last - first); !why.empty()) return refuse(why);
    if (want == Want::pin) {
        const u64 most = most_resident();
        u64 fresh = 0;
        auto fits = [&] {
            fresh = 0;
            for (u32 unit = first; unit < last; unit++) fresh += local_[unit].pins == 0;
            return pinned_ + fresh <= most;
        };
        if (!fits() && !(drop_dead_pins() && fits()))
            return refuse("no_room:" + std::to_string(fresh * UNIT) + " more bytes cannot be pinned: " + std::to_string(pinned_ * UNIT) + " of the " +
                          std::to_string(capacity_ * UNIT) + " bytes of dram are, and some must stay free; release pins, or give the space more dram");
        const bool plain = !client.is.read_only;  // also with faults: devices, and system calls where faults are for user mode only
        client.pins[id] = {first, last, plain};
        for (u32 unit = first; unit < last; unit++) {
            pinned_ += local_[unit].pins++ == 0;
            local_[unit].plain_pins += plain;
        }
        store(words_.head().pinned, pinned_);
    }
    if (want == Want::demote)  // what was only guessed does not come back behind it
        for (auto& [order, request] : requests_)
            if (request->want == Want::ahead && request->first < last && first < request->last) stop_request(*request, "");
    add(number, id, want, first, last, priority);
    dispatch();
}

void TierEngine::ask_many(u32 number, u64 id, std::vector<UnitRange> ranges, int priority) {
    std::lock_guard guard(mutex_);
    Attached& client = clients_.at(number);
    u64 units = 0;
    for (const UnitRange& range : ranges) {
        if (range.first >= range.last || range.last > units_) return client.is.answer(id, false, "bad_address:a range is outside the data of the space");
        units += range.last - range.first;
    }
    if (ranges.empty()) return client.is.answer(id, true, "");
    std::vector<UnitRange> sorted = ranges;  // rows of a table may be many in one unit
    std::ranges::sort(sorted, {}, &UnitRange::first);
    u64 different = 0, end = 0;
    for (const UnitRange& range : sorted) {
        different += range.last - std::min<u64>(range.last, std::max<u64>(range.first, end));
        end = std::max<u64>(end, range.last);
    }
    if (const std::string why = too_much(different); !why.empty()) return client.is.answer(id, false, why);
    Request& request = *add(number, id, Want::prefetch, ranges[0].first, ranges[0].last, priority);
    request.more.assign(ranges.begin() + 1, ranges.end());
    request.left = u32(units);
    dispatch();
}

// A process that died holds nothing, though the end of its connection was not read yet.
bool TierEngine::drop_dead_pins() {
    bool any = false;
    for (auto& [number, client] : clients_) {
        if (client.pins.empty() || !client.is.alive || client.is.alive()) continue;
        while (!client.pins.empty()) unpin_locked(client, client.pins.begin()->first);
        any = true;
    }
    return any;
}

std::string TierEngine::too_much(u64 units) {
    const u64 most = most_resident();
    auto fits = [&] { return units <= most - std::min(most, pinned_); };
    if (fits() || (drop_dead_pins() && fits())) return "";
    return "no_room:" + std::to_string(units * UNIT) + " bytes are to be in memory at once, but of the " + std::to_string(capacity_ * UNIT) +
           " bytes of dram " + std::to_string((capacity_ - most + pinned_) * UNIT) + " are pinned or kept free; ask for parts, or give the space more dram";
}

void TierEngine::unpin_locked(Attached& client, u64 id) {
    auto found = client.pins.find(id);
    if (found == client.pins.end()) return;
    for (u32 unit = found->second.first; unit < found->second.last; unit++) {
        pinned_ -= --local_[unit].pins == 0;
        local_[unit].plain_pins -= found->second.plain;
    }
    client.pins.erase(found);
    store(words_.head().pinned, pinned_);
}

void TierEngine::unpin(u32 number, u64 id) {
    std::lock_guard guard(mutex_);
    if (auto found = clients_.find(number); found != clients_.end()) unpin_locked(found->second, id);
    dispatch();
}

void TierEngine::reorder(u32 number, u64 id, int priority) {
    std::lock_guard guard(mutex_);
    auto found = clients_.find(number);
    if (found == clients_.end()) return;
    for (Request* request : found->second.requests)
        if (request->id == id && !request->begun && request->want != Want::touch && request->want != Want::ahead) {
            auto node = requests_.extract({-request->priority, request->sequence});
            request->priority = priority;
            node.key().first = -priority;
            requests_.insert(std::move(node));
            break;
        }
    dispatch();
}

void TierEngine::cancel(u32 number, u64 id) {
    std::lock_guard guard(mutex_);
    auto found = clients_.find(number);
    if (found == clients_.end()) return;
    for (Request* request : found->second.requests)
        if (id && request->id == id) {
            if (request->want == Want::pin) {
                unpin_locked(found->second, id);
                request->error = "cancelled:";  // though all of it is under way: it is not held
            }
            stop_request(*request, "cancelled:");
            break;
        }
    dispatch();
}

// What was not begun is not; what is under way comes to its end.
void TierEngine::stop_request(Request& request, const std::string& why) {
    const bool any = request.next < request.last || !request.more.empty();
    request.left -= request.last - request.next;
    for (const UnitRange& range : request.more) request.left -= range.last - range.first;
    request.more.clear();
    if (any && request.error.empty()) request.error = why;
    request.next = request.last;
}

void TierEngine::one_done(Request& request) {
    if (--request.left == 0 && request.begun) finish(request);
}

void TierEngine::finish(Request& request) {
    auto owner = begun_.extract(&request);
    auto found = clients_.find(request.client);
    if (found == clients_.end()) return;
    Attached& client = found->second;
    client.requests.erase(&request);
    if (request.id == 0) return;  // nobody's but the engine's
    if (!request.error.empty() && request.want == Want::pin) unpin_locked(client, request.id);
    client.is.answer(request.id, request.error.empty(), request.error);
}

void TierEngine::hold(bool on) {
    std::lock_guard guard(mutex_);
    held_ = on;
    dispatch();
}

void TierEngine::dispatch() {
    if (held_) return;
    do {  // what is begun may want more to be done first
        added_ = false;
        begin_requests();
    } while (added_);
    if (room() < low_water()) make_room(0);
    if (jobs_.empty() && running_ == 0) idle_.notify_all();
}

void TierEngine::begin_requests() {
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

// False: it waits for something that others may not need.
bool TierEngine::advance(Request& request) {
    switch (request.want) {
        case Want::discard: return advance_discard(request), true;
        case Want::demote: return advance_demote(request);
        case Want::flush: return advance_flush(request), true;
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

bool TierEngine::advance_fill(Request& request) {
    TierCounts& counts = words_.head().counts;
    const bool explicitly = request.want == Want::prefetch || request.want == Want::pin;
    auto plain = [&](u32 unit) {  // who writes without faults makes it dirty, whether he will or not
        if (request.want != Want::pin || !local_[unit].plain_pins) return;
        if (words_.tier(unit) == Tier::writing) local_[unit].unseen = true;
        if (words_.tier(unit) == Tier::clean) {
            set(unit, with_tier(load(words_.at(unit).word), Tier::dirty));
            local_[unit].unsure = true;
        }
    };
    while (request.next < request.last) {
        const u32 unit = request.next;
        const u64 word = load(words_.at(unit).word);
        const Tier tier = tier_of(word);
        if (in_memory(tier)) {
            u32 end = unit + 1;
            while (end < request.last && end - unit < RUN && words_.tier(end) == tier) end++;
            for (u32 at = unit; at < end; at++) {
                if (explicitly) counts.asked++, counts.asked_there++, policy_.touched(at);
                plain(at);
            }
            if (request.want != Want::touch && !request.young && !(request.skip >= unit && request.skip < end)) show(request.client, unit, end - unit, false);
            request.next = end;
            for (u32 at = unit; at < end; at++) one_done(request);
        } else if (tier == Tier::flash || (tier == Tier::empty && (request.want == Want::touch || request.want == Want::pin || request.zeros))) {
            if (jobs_.size() + running_ >= DEPTH && request.want != Want::touch) return true;
            u64 most = std::min<u64>(RUN, request.last - unit);
            const bool vacant = local_[unit].vacant;
            if (!vacant && room() < most + (request.want == Want::touch ? 0 : low_water() / 2)) make_room(most);
            u64 free = vacant ? most : room();
            if (!free && request.want == Want::ahead) {  // not worth anybody's place
                stop_request(request, "");
                return true;
            }
            if (!free && (evicting_ || flush_wanted_)) return false;
            if (!free && request.want != Want::touch && !settled_) return false;
            if (!free && request.want != Want::touch) {
                if (!request.looked) drop_dead_pins();
                request.looked = true;
                make_room(most);  // those that it passed over are asked again
                if (evicting_ || running_ || !jobs_.empty()) return false;
            }
            if (!free && request.want != Want::touch) {
                const char* trouble = words_.head().trouble;
                request.error = failed_ns_ && now_ns() - failed_ns_ < 2'000'000'000 ? std::string("flash:") + trouble
                                : "no_room:nothing in dram can make room: what is there is pinned, or must stay";
                stop_request(request, "");
                return true;
            }
            if (!free) free = most;  // a touch cannot fail: more memory than was meant is better than an end
            u32 slot = flash_slot(word), count = 1;
            most = std::min(most, free);
            if (slot != NO_SLOT) most = flash_.together(slot, most);
            while (count < most && tier_of(load(words_.at(unit + count).word)) == tier && local_[unit + count].vacant == vacant && flash_slot(load(words_.at(unit + count).word)) == (slot == NO_SLOT ? NO_SLOT : slot + count)) count++;
            for (u32 at = unit; at < unit + count; at++) {
                if (explicitly) counts.asked++;
                set(at, with_tier(load(words_.at(at).word), Tier::filling));
                if (vacant) set_vacant(at, false);
                waiters_[at].push_back({&request, request.client, false, 0});
            }
            request.next += count;
            begin({tier == Tier::empty ? Kind::provide : Kind::fill, unit, count, &request, slot, vacant});
        } else if (tier == Tier::empty) {
            request.next++;
            one_done(request);
        } else {
            waiters_[unit].push_back({&request, request.client, false, 0});
            request.next++;
        }
    }
    return true;
}

bool TierEngine::advance_demote(Request& request) {
    std::vector<u32> leaving;
    while (request.next < request.last && jobs_.size() + running_ + leaving.size() / RUN < DEPTH) {
        const u32 unit = request.next;
        const Tier tier = words_.tier(unit);
        if (tier == Tier::flash || tier == Tier::empty) {
            request.next++;
            one_done(request);
        } else if (tier == Tier::clean || tier == Tier::dirty) {
            if (!settled_) {
                begin_runs(leaving);
                return false;
            }
            if (local_[unit].pins && !request.looked) {
                request.looked = true;
                drop_dead_pins();
            }
            if (local_[unit].pins || unmovable(unit)) {
                if (local_[unit].pins) request.error = PINNED;
                request.next++;  // what shares a unit with something that must stay, stays
                one_done(request);
                stable(unit);  // who tries again waits for it
                continue;
            }
            request.next++;
            waiters_[unit].push_back({&request, request.client, false, 0});
            local_[unit].stay = true;
            if (!begin_leaving(unit, leaving)) local_[unit].stay = false, stable(unit);
        } else {
            request.next++;
            waiters_[unit].push_back({&request, request.client, false, 0});
        }
    }
    begin_runs(leaving);
    return true;
}

void TierEngine::advance_discard(Request& request) {
    while (request.next < request.last) {
        const u32 unit = request.next;
        const u64 word = load(words_.at(unit).word);
        const Tier tier = tier_of(word);
        if ((tier == Tier::flash && !local_[unit].vacant) || tier == Tier::empty) {
            if (flash_slot(word) != NO_SLOT) free_slot(flash_slot(word));
            set(unit, tier_word(Tier::empty, generation_of(word), NO_SLOT));
            request.next++;
            one_done(request);
            stable(unit);
        } else if (tier == Tier::clean || tier == Tier::dirty || tier == Tier::flash) {
            u32 end = unit;
            auto here = [&](u32 at) { return words_.tier(at) == Tier::clean || words_.tier(at) == Tier::dirty || local_[at].vacant; };
            while (end < request.last && end - unit < RUN && here(end)) {
                if (local_[end].vacant) set_vacant(end, false);
                set(end, with_tier(load(words_.at(end).word), Tier::discarding));
                waiters_[end].push_back({&request, request.client, false, 0});
                evicting_++;
                end++;
            }
            request.next = end;
            begin({Kind::discard, unit, end - unit, nullptr, NO_SLOT});
        } else {
            waiters_[unit].push_back({&request, request.client, false, 0});
            request.next++;
        }
    }
}

void TierEngine::stable(u32 unit) {
    auto found = waiters_.find(unit);
    if (found == waiters_.end()) return;
    std::vector<Waiter> waiting = std::move(found->second);
    waiters_.erase(found);
    for (Waiter& waiter : waiting) {
        if (!waiter.request) {
            TierCounts& counts = words_.head().counts;
            if (in_memory(words_.tier(unit)) && waiter.since_ns) counts.wait_ns += now_ns() - waiter.since_ns, counts.minor_faults--;
            counts.faults--;  // it is counted again
            touch_unit(waiter.client, unit, waiter.write, waiter.since_ns);
            continue;
        }
        Request& request = *waiter.request;
        const Tier tier = words_.tier(unit);
        const bool there = in_memory(tier);
        const bool fills = request.want != Want::demote && request.want != Want::discard && request.want != Want::flush;
        // It was on its way out, or has come back: once more, as a request of its own that the first one waits for.
        const bool gone = fills && !there && request.error.empty() && request.want != Want::ahead && request.want != Want::touch;
        const bool back = request.want == Want::discard && tier != Tier::empty;
        const bool came = request.want == Want::demote && request.id && (tier == Tier::clean || tier == Tier::dirty) && !local_[unit].pins && request.error.empty() &&
                          ++waiter.tries <= 3;  // who uses it all the time keeps it
        if (request.want == Want::demote && in_memory(tier) && local_[unit].pins && request.error.empty()) request.error = PINNED;
        if (gone || back || came) {
            add(request.client, 0, fills ? Want::touch : request.want, unit, unit + 1, SOONEST);
            waiters_[unit].push_back(waiter);
            continue;
        }
        const bool changes = fills && there && request.want == Want::pin && local_[unit].plain_pins && tier == Tier::clean;
        if (changes) {  // and is shown anew: writable
            set(unit, with_tier(load(words_.at(unit).word), Tier::dirty));
            local_[unit].unsure = true;
        }
        auto found_client = clients_.find(request.client);
        const bool shown = found_client == clients_.end() || (!changes && (local_[unit].mapped & found_client->second.bit));
        if (fills && there && !shown && request.want != Want::touch && !request.young && request.skip != unit) show(request.client, unit, 1, false);
        one_done(request);
    }
}

}  // namespace osf::tiers
