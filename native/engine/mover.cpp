// Which units leave memory, and how that is begun. What the threads do is in engine/moves.cpp.
#include "engine/mover.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "faults/faults.hpp"

namespace osf::engine {

static const char* const watch = std::getenv("OPENSHELF_WATCH");

Mover::Mover(Units& units, Viewers& viewers, Waiters& waiters, Slots& slots, Moment& moment, Flash& flash)
    : units_(units), viewers_(viewers), waiters_(waiters), slots_(slots), moment_(moment), flash_(flash),
      watches_(abilities().minor && (!watch || std::string_view(watch) != "off")) {}

void Mover::begin(const Job& job) {
    if (job.want == Want::touch) jobs_.push_front(job);
    else jobs_.push_back(job);
    work_.notify_one();
}

void Mover::hasten(u32 unit) {
    auto job = std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& one) { return one.has(unit); });
    if (job != jobs_.end() && job != jobs_.begin()) std::rotate(jobs_.begin(), job, job + 1);
}

bool Mover::next(Worker& worker, std::unique_lock<std::mutex>& lock) {
    work_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (stop_) return false;
    worker.job = jobs_.front();
    jobs_.pop_front();
    running_++;
    return true;
}

void Mover::stop() {
    {
        std::lock_guard guard(units_.mutex);
        stop_ = true;
    }
    work_.notify_all();
}

// Room

void Mover::make_room(u64 wanted) {
    if (!viewers_.settled() || (units_.failed_ns && now_ns() - units_.failed_ns < 200'000'000)) return;
    const u64 goal = std::min(wanted + 2 * units_.low_water(), units_.capacity), most = units_.evicting + 4 * RUN;
    auto enough = [&] { return units_.room() + units_.evicting >= goal || units_.evicting >= most; };
    begin_vacating(goal, most);
    std::vector<u32> leaving;
    for (int steps = 0; steps < 256 && !enough(); steps++) {
        const TierPolicy::Choice choice = units_.policy.next();
        if (choice.what == TierPolicy::Choice::none) break;
        if (choice.what == TierPolicy::Choice::demote) {
            begin_one_leaving(choice.unit, leaving);
            continue;
        }
        Local& local = units_.local(choice.unit);
        if (local.armed || !in_memory(units_.tier(choice.unit)) || !watches_) continue;
        local.armed = true;
        units_.counts().armed++;
        viewers_.watch(choice.unit);
    }
    begin_runs(leaving);
    viewers_.tell_watched();
    store(units_.words.head().evicting, units_.evicting);
}

// Pages of vacant units go first: nothing is in those.
void Mover::begin_vacating(u64 goal, u64 most) {
    while (units_.room() + units_.evicting < goal && !units_.vacants().empty() && units_.evicting < most) {
        const u32 first = *units_.vacants().begin();
        u32 count = 0;
        for (; count < RUN && first + count < units_.count && units_.local(first + count).vacant; count++) {
            units_.set_vacant(first + count, false);
            units_.set_tier(first + count, Tier::dropping);
            units_.evicting++;
        }
        begin({Job::Kind::vacate, first, count});
    }
}

// The policy named it.
void Mover::begin_one_leaving(u32 unit, std::vector<u32>& leaving) {
    const Tier tier = units_.tier(unit);
    if (tier == Tier::dirty && slots_.few()) {  // a commit gives back those of older versions
        moment_.want();
        units_.policy.kept(unit);
        return;
    }
    const bool can = (tier == Tier::clean || tier == Tier::dirty) && !units_.local(unit).pins && !waiters_.any(unit) && !units_.unmovable(unit);
    if (!can || !begin_leaving(unit, leaving)) units_.policy.kept(unit);
}

bool Mover::begin_leaving(u32 unit, std::vector<u32>& leaving) {
    const u64 word = units_.word(unit);
    if (units_.unused(unit)) {
        units_.set(unit, with_tier(word, Tier::discarding));
        if (viewers_.protect(unit) && units_.unused(unit)) {  // asked again: who took a part of it meanwhile has not written there yet
            units_.evicting++;
            begin({Job::Kind::discard, unit, 1});
            return true;
        }
        units_.set(unit, word);
        return false;
    }
    if (tier_of(word) == Tier::clean) {
        units_.set(unit, with_tier(word, Tier::dropping));
    } else {
        units_.set(unit, with_tier(word, Tier::writing));
        if (!viewers_.protect(unit)) {
            units_.set(unit, word);
            return false;
        }
        units_.local(unit).drop = true;
    }
    units_.evicting++;
    leaving.push_back(unit);
    return true;
}

void Mover::begin_runs(std::vector<u32>& units) {
    std::sort(units.begin(), units.end());
    for (size_t at = 0; at < units.size();) {
        const u32 first = units[at];
        const Tier tier = units_.tier(first);
        u32 count = 1, slot = NO_SLOT;
        while (count < RUN && at + count < units.size() && units[at + count] == first + count && units_.tier(first + count) == tier) count++;
        if (tier == Tier::writing) {
            while ((slot = slots_.take(first, count)) == NO_SLOT && count > 1) count /= 2;
            if (slot == NO_SLOT) {
                no_slot_for(first);
                at++;
                continue;
            }
        }
        begin({tier == Tier::writing ? Job::Kind::write : Job::Kind::drop, first, count, slot});
        at += count;
    }
    units.clear();
}

void Mover::no_slot_for(u32 unit) {
    const std::string why = "no_room:no slot of the flash files is free";
    units_.set_tier(unit, Tier::dirty);
    if (std::exchange(units_.local(unit).drop, false)) kept(unit);
    if (units_.local(unit).frozen) moment_.done(unit, {}, why);
    fails(unit, why, false);
}

void Mover::kept(u32 unit) {
    units_.evicting--;
    units_.policy.kept(unit);
}

void Mover::fails(u32 unit, const std::string& why, bool gone) {
    units_.trouble(why);
    waiters_.failed(unit, why, gone);
}

// Units that leave their pages behind

// They are dropping; once no page table shows them, they are on flash, and their pages are vacant.
bool Mover::hide(const Job& job) {
    std::vector<u32> staying;
    for (u32 unit = job.first; unit < job.end(); unit++)
        if (units_.local(unit).stay) staying.push_back(unit);
    if (staying.size() != job.count || !abilities().minor) {  // some were asked for, some chosen: all go
        for (u32 unit : staying) units_.local(unit).stay = false;
        return false;
    }
    units_.counts().dropped_bytes += job.count * UNIT;
    const std::vector<u32> clients = viewers_.mapping(staying);
    Leaving leaving{std::move(staying), {clients.begin(), clients.end()}, now_ns()};
    if (clients.empty()) {
        hidden(leaving);
        return true;
    }
    const u64 ticket = ++tickets_;
    const Leaving& is = leaving_.emplace(ticket, std::move(leaving)).first->second;
    for (u32 client : clients) viewers_.at(client).is.arm(is.units, ticket);
    return true;
}

void Mover::hidden(const Leaving& leaving) {
    for (u32 unit : leaving.units) {
        units_.set_tier(unit, Tier::flash);
        left_memory(unit);
    }
}

void Mover::left_memory(u32 unit) {
    units_.evicting--;
    Local& local = units_.local(unit);
    local.mapped = 0;
    if (std::exchange(local.stay, false) && units_.tier(unit) == Tier::flash) units_.set_vacant(unit, true);
    local.armed = local.drop = local.unsure = false;
    units_.policy.left(unit);
    store(units_.words.head().evicting, units_.evicting);
    waiters_.rested(unit);
}

bool Mover::armed(u32 client, u64 ticket) {
    auto found = leaving_.find(ticket);
    if (found == leaving_.end()) return false;
    found->second.clients.erase(client);
    if (!found->second.clients.empty()) return false;
    hidden(found->second);
    leaving_.erase(found);
    return true;
}

void Mover::detached(u32 client) {
    for (auto at = leaving_.begin(); at != leaving_.end();)
        if (at->second.clients.erase(client), at->second.clients.empty()) hidden(at->second), at = leaving_.erase(at);
        else ++at;
}

void Mover::hide_from_stopped() {
    for (auto at = leaving_.begin(); at != leaving_.end();) {
        if (now_ns() - at->second.since_ns < 500'000'000) {
            ++at;
            continue;
        }
        for (u32 unit : at->second.units) {
            units_.punch(unit, 1);
            units_.local(unit).stay = false;
        }
        hidden(at->second);
        at = leaving_.erase(at);
    }
}

}  // namespace osf::engine
