// What is done: units read, written, dropped; and who leaves when memory is full.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <utility>
#include <sys/mman.h>
#include <unistd.h>

#include "faults/faults.hpp"
#include "tiers/journal.hpp"
#include "space/sync.hpp"
#include "tiers/engine.hpp"

namespace osf::tiers {

// Slabs hold what is small and often waited for with futexes; locks, channels and pools' heads are used by native code that
// does not expect to wait for a disk. The blocks of pools are not: they may be as many as flash holds.
bool TierEngine::unmovable(u32 unit) const {
    if (space_->data.is_slab(unit)) return true;
    u32 last = 0;
    for (u64 page = u64(unit) * CHUNK_PAGES; page < (u64(unit) + 1) * CHUNK_PAGES; page++) {
        const u32 owner = load(space_->data.owners()[page]);
        if (!owner || owner == last) continue;
        last = owner;
        const u64 offset = u64(owner) * 64;
        if (!space_->meta.contains(offset) || !space_->meta.slot_taken(offset)) continue;
        const u8 kind = load(space_->record(offset).kind);
        if (kind && !movable(offset, page)) return true;
    }
    return false;
}

// Whether a page of an array of some kind, and so what follows it there, may leave memory.
bool TierEngine::movable(u64 record, u64 page) const {
    const Record& array = space_->record(record);
    const u64 ref = load(array.data), first = extent_page(ref);
    if (!(ref & EXTENT) || page < first || page >= first + extent_pages(ref) || !in_memory(words_.tier(first / CHUNK_PAGES))) return false;
    const u64 from = movable_from(load(array.kind), space_->data.pointer(ref), std::min(array.nbytes, extent_pages(ref) * PAGE));
    return from && (page - first) * PAGE >= from;
}

bool TierEngine::unused(u32 unit) const { return (load(space_->data.bits()[u64(unit) * CHUNK_PAGES / 64]) >> (u64(unit) * CHUNK_PAGES % 64) & 0xffff) == 0; }

std::string TierEngine::names_at(u32 unit) const {
    std::string names;
    u32 last = 0;
    for (u64 page = u64(unit) * CHUNK_PAGES; page < (u64(unit) + 1) * CHUNK_PAGES; page++) {
        const u32 owner = load(space_->data.owners()[page]);
        const u64 offset = u64(owner) * 64;
        if (!owner || owner == last || !space_->meta.contains(offset) || !space_->meta.slot_taken(offset)) continue;
        last = owner;
        std::string name = name_of(space_->record(offset), space_->meta);
        names += (names.empty() ? "'" : ", '") + (name.empty() ? std::string("unnamed") : name) + "'";
    }
    return names.empty() ? "nothing" : names;
}

bool TierEngine::protect(u32 unit) {
    const u64 mapped = local_[unit].mapped;
    for (auto& [number, client] : clients_) {
        if (!client.is.faults || !(mapped & client.bit)) continue;
        const int error = protect_pages(client.is.faults->fd, address_of(unit), UNIT, true);
        if (error && error != ESRCH && error != ENOENT) return false;  // ENOENT: its range is gone, with the process
    }
    return true;
}

// Begins that a unit leaves memory, if it can. What is to be written is collected: neighbours go together.
bool TierEngine::begin_leaving(u32 unit, std::vector<u32>& leaving) {
    const u64 word = load(words_.at(unit).word);
    const Tier tier = tier_of(word);
    if (unused(unit)) {
        set(unit, with_tier(word, Tier::discarding));
        if (protect(unit) && unused(unit)) {  // asked again: who took a part of it meanwhile has not written there yet
            evicting_++;
            begin({Kind::discard, unit, 1, nullptr, NO_SLOT});
            return true;
        }
        set(unit, word);
        return false;
    }
    if (tier == Tier::clean) {
        set(unit, with_tier(word, Tier::dropping));
    } else {
        set(unit, with_tier(word, Tier::writing));
        if (!protect(unit)) {
            set(unit, word);
            return false;
        }
        local_[unit].drop = true;
    }
    evicting_++;
    leaving.push_back(unit);
    return true;
}

void TierEngine::begin_runs(std::vector<u32>& units) {
    std::sort(units.begin(), units.end());
    for (size_t at = 0; at < units.size();) {
        const u32 first = units[at];
        const Tier tier = words_.tier(first);
        u32 count = 1, slot = NO_SLOT;
        while (count < RUN && at + count < units.size() && units[at + count] == first + count && words_.tier(first + count) == tier) count++;
        if (tier == Tier::writing) {
            while ((slot = take_slots(first, count)) == NO_SLOT && count > 1) count /= 2;
            if (slot == NO_SLOT) {
                const std::string why = "no_room:no slot of the flash files is free";
                set(first, with_tier(load(words_.at(first).word), Tier::dirty));
                if (std::exchange(local_[first].drop, false)) {
                    evicting_--;
                    policy_.kept(first);
                }
                if (local_[first].frozen) frozen_done(first, {}, why);
                failed(first, why, false);
                stable(first);
                at++;
                continue;
            }
        }
        begin({tier == Tier::writing ? Kind::write : Kind::drop, first, count, nullptr, slot});
        at += count;
    }
    units.clear();
}

// Makes sure that `wanted` units and some more are free, or soon will be.
void TierEngine::make_room(u64 wanted) {
    const u64 now = now_ns();
    if (!settled_ || (failed_ns_ && now - failed_ns_ < 200'000'000)) return;
    const u64 goal = std::min(wanted + 2 * low_water(), capacity_);
    std::vector<u32> leaving;
    const u64 before = evicting_;
    while (room() + evicting_ < goal && !vacants_.empty() && evicting_ - before < 4 * RUN) {  // nothing is in those
        const u32 first = *vacants_.begin();
        u32 count = 0;
        for (; count < RUN && first + count < units_ && local_[first + count].vacant; count++) {
            set_vacant(first + count, false);
            set(first + count, with_tier(load(words_.at(first + count).word), Tier::dropping));
            evicting_++;
        }
        begin({Kind::vacate, first, count, nullptr, NO_SLOT});
    }
    for (int steps = 0; steps < 256 && room() + evicting_ < goal && evicting_ - before < 4 * RUN; steps++) {
        TierPolicy::Choice choice = policy_.next();
        if (choice.what == TierPolicy::Choice::none) break;
        Local& local = local_[choice.unit];
        const Tier tier = words_.tier(choice.unit);
        if (choice.what == TierPolicy::Choice::arm) {
            if (local.armed || !in_memory(tier) || !watches_) continue;
            local.armed = true;
            words_.head().counts.armed++;
            for (auto& [number, client] : clients_)
                if (client.is.faults && (local.mapped & client.bit)) client.arming.push_back(choice.unit);
            continue;
        }
        if (tier == Tier::dirty && short_of_slots()) {  // a commit gives back those of older versions
            if (!flush_wanted_) flush_wanted_ = true, flush_.notify_all();
            policy_.kept(choice.unit);
            continue;
        }
        const bool can = (tier == Tier::clean || tier == Tier::dirty) && !local.pins && !waiters_.count(choice.unit) && !unmovable(choice.unit);
        if (!can || !begin_leaving(choice.unit, leaving)) policy_.kept(choice.unit);
    }
    begin_runs(leaving);
    for (auto& [number, client] : clients_)  // many at a time: each time costs the process more than each unit
        if (client.arming.size() >= std::min<u64>(64, capacity_ / 16)) client.is.arm(std::exchange(client.arming, {}), 0);
    store(words_.head().evicting, evicting_);
}

// Slots. Without durability a unit's slot is its own number; otherwise what the last commit shows is never written over.
u32 TierEngine::take_slots(u32 unit, u32 count) {
    if (!durable_) {
        return u32(flash_.together(unit, count) == count ? unit : NO_SLOT);
    }
    const u64 total = words_.head().slots;
    auto free_run = [&](u64 slot) {
        if (slot + count > total || flash_.together(slot, count) != count) return false;
        for (u64 at = slot; at < slot + count; at++)
            if (slots_[at / 64] >> (at % 64) & 1) return false;
        return true;
    };
    auto take = [&](u64 slot) {
        for (u64 at = slot; at < slot + count; at++) slots_[at / 64] |= 1ull << (at % 64);
        free_slots_ -= count;
        slot_hint_ = slot + count;
        return u32(slot);
    };
    for (u64 tried = 0, slot = slot_hint_; tried < total; tried++, slot++) {
        if (slot >= total) slot = 0;
        if (slots_[slot / 64] == ~0ull && slot % 64 == 0) {
            tried += 63, slot += 63;
            continue;
        }
        if (free_run(slot)) return take(slot);
    }
    return NO_SLOT;
}

void TierEngine::free_slot(u32 slot) {
    if (!durable_) return;  // it is the unit's own
    const u64 bit = 1ull << (slot % 64);
    if ((kept_[slot / 64] | kept_next_[slot / 64]) & bit) return;
    free_slots_ += (slots_[slot / 64] & bit) != 0;
    slots_[slot / 64] &= ~bit;
}

// Jobs

void TierEngine::begin(Job job) {
    if (job.request && job.request->want == Want::touch) jobs_.push_front(job);
    else jobs_.push_back(job);
    work_.notify_one();
}

void TierEngine::work() {
    char* buffer = static_cast<char*>(std::aligned_alloc(BLOCK, BLOCK));
    madvise(buffer, BLOCK, MADV_HUGEPAGE);  // one piece for the disk
    std::memset(buffer, 0, RUN * UNIT);
    std::unique_lock lock(mutex_);
    for (;;) {
        work_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
        if (stop_) break;
        Job job = jobs_.front();
        jobs_.pop_front();
        running_++;
        lock.unlock();
        run(job, buffer);
        lock.lock();
        running_--;
        dispatch();
    }
    std::free(buffer);
}

void TierEngine::run(const Job& job, char* buffer) {
    switch (job.kind) {
        case Kind::fill: return fill(job, buffer);
        case Kind::provide: return provide(job);
        case Kind::write: return write(job, buffer);
        case Kind::drop:
            if (local_stays(job)) return;
            break;
        case Kind::vacate:
        case Kind::discard: break;
    }
    punch(job.first, job.count);
    std::lock_guard guard(mutex_);
    for (u32 unit = job.first; unit < job.first + job.count; unit++) {
        const u64 word = load(words_.at(unit).word);
        if (job.kind == Kind::discard) {
            if (flash_slot(word) != NO_SLOT) free_slot(flash_slot(word));
            set(unit, tier_word(Tier::empty, generation_of(word), NO_SLOT));
        } else {
            set(unit, with_tier(word, Tier::flash));
            if (job.kind == Kind::drop) words_.head().counts.dropped_bytes += UNIT;
        }
        left_memory(unit);
    }
}

void TierEngine::left_memory(u32 unit) {
    evicting_--;
    Local& local = local_[unit];
    local.mapped = 0;
    if (std::exchange(local.stay, false) && words_.tier(unit) == Tier::flash) set_vacant(unit, true);
    local.armed = local.drop = local.unsure = false;
    policy_.left(unit);
    store(words_.head().evicting, evicting_);
    stable(unit);
}

bool TierEngine::local_stays(const Job& job) {
    std::vector<u32> staying;
    std::lock_guard guard(mutex_);
    for (u32 unit = job.first; unit < job.first + job.count; unit++)
        if (local_[unit].stay) staying.push_back(unit);
    if (staying.size() != job.count) {  // some were asked for, some chosen: all go
        for (u32 unit : staying) local_[unit].stay = false;
        return false;
    }
    words_.head().counts.dropped_bytes += job.count * UNIT;
    hide(std::move(staying));
    return true;
}

// Under the mutex. They are dropping; once no page table shows them, they are on flash, and their pages are vacant.
void TierEngine::hide(std::vector<u32> units) {
    Leaving leaving{std::move(units), {}, now_ns()};
    u64 mapped = 0;
    for (u32 unit : leaving.units) mapped |= local_[unit].mapped;
    for (auto& [number, client] : clients_)
        if (client.is.faults && (mapped & client.bit)) leaving.clients.insert(number);
    if (leaving.clients.empty()) return hidden(leaving);
    const u64 ticket = ++sequence_;
    const Leaving& is = leaving_.emplace(ticket, std::move(leaving)).first->second;
    for (u32 number : std::set<u32>(is.clients)) clients_.at(number).is.arm(is.units, ticket);
}

void TierEngine::hidden(Leaving& leaving) {
    for (u32 unit : leaving.units) {
        set(unit, with_tier(load(words_.at(unit).word), Tier::flash));
        left_memory(unit);
    }
}

void TierEngine::armed(u32 client, u64 ticket) {
    std::lock_guard guard(mutex_);
    auto found = leaving_.find(ticket);
    if (found == leaving_.end()) return;
    found->second.clients.erase(client);
    if (!found->second.clients.empty()) return;
    Leaving leaving = std::move(found->second);
    leaving_.erase(found);
    hidden(leaving);
    dispatch();
}

void TierEngine::punch(u32 first, u32 count) {
    while (fallocate(data_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(first) * off_t(UNIT), off_t(count) * off_t(UNIT)) < 0)
        if (errno != EINTR) std::abort();  // tmpfs has no reason to refuse; going on would show old bytes
}

void TierEngine::failed(u32 unit, const std::string& why, bool gone) {
    TiersHead& head = words_.head();
    head.counts.errors++;
    std::snprintf(head.trouble, sizeof head.trouble, "%s", why.substr(why.find(':') + 1).c_str());
    auto found = waiters_.find(unit);
    if (found == waiters_.end()) return;
    std::vector<Waiter> waiting = std::move(found->second);
    waiters_.erase(found);
    for (Waiter& waiter : waiting) {
        if (!waiter.request && gone) {
            poison(waiter.client, unit);
        } else if (waiter.request && (gone || waiter.request->want == Want::demote || waiter.request->want == Want::flush)) {
            if (waiter.request->error.empty()) waiter.request->error = why;
            one_done(*waiter.request);
        } else {
            waiters_[unit].push_back(waiter);
        }
    }
}

// By way of a buffer that is one piece of memory, which disks like; from there into the pages that the units left behind or, where
// there are none, into the file: giving it pages is most of the work then, and costs less so than by faults.
void TierEngine::fill(const Job& job, char* buffer) {
    const u64 start = now_ns();
    std::string errors[RUN];
    auto take = [&](u32 at, u32 count) {
        try {
            flash_.read(job.slot + at, count, buffer + at * UNIT);
            return std::string();
        } catch (const FlashError& error) { return std::string("flash:") + error.what(); }
    };
    if (std::string all = take(0, job.count); !all.empty())
        for (u32 at = 0; at < job.count; at++) errors[at] = job.count == 1 ? all : take(at, 1);
    for (u32 at = 0; at < job.count; at++) {
        const TierWord& word = words_.at(job.first + at);
        char* to = job.vacant ? reinterpret_cast<char*>(address_of(job.first + at)) : nullptr;
        if (errors[at].empty() && unit_check(buffer + at * UNIT, job.first + at, load(word.word), to) != word.check)
            errors[at] = "corrupt:slot " + std::to_string(job.slot + at) + " of the flash files fails its checksum: the block was torn or changed";
        if (!errors[at].empty()) errors[at] += "; lost with it: " + names_at(job.first + at);
    }
    for (u32 at = 0; at < job.count && !job.vacant;) {  // before anybody's page tables
        u32 end = at;
        while (end < job.count && errors[end].empty()) end++;
        if (end > at) {
            const u64 bytes = u64(end - at) * UNIT;
            ssize_t put;
            do put = pwrite(data_, buffer + at * UNIT, bytes, off_t(job.first + at) * off_t(UNIT));
            while (put < 0 && errno == EINTR);
            if (put != ssize_t(bytes))
                for (u32 one = at; one < end; one++)
                    errors[one] = std::string("no_room:the file system behind the space has no memory left (") + std::strerror(put < 0 ? errno : ENOSPC) + ")";
            at = end;
        } else {
            at++;
        }
    }
    // Who asked for the run sees it before anybody else can want it: the mutex is not held for that.
    const bool whole = std::all_of(errors, errors + job.count, [](const std::string& error) { return error.empty(); });
    if (auto faults = whole ? shown_to(job) : nullptr) show_filled(*faults, address_of(job.first), job);
    const u64 spent = now_ns() - start;
    std::lock_guard guard(mutex_);
    TierCounts& counts = words_.head().counts;
    counts.read_ns += spent;
    for (u32 at = 0; at < job.count; at++) {
        const u32 unit = job.first + at;
        const u64 word = load(words_.at(unit).word);
        if (errors[at].empty()) {
            set(unit, with_tier(word, Tier::clean));
            counts.read_bytes += UNIT;
            policy_.filled(unit, !job.request->young);
            local_[unit].armed = job.request->young;
        } else {
            punch(unit, 1);
            set(unit, with_tier(word, Tier::flash));
        }
    }
    for (u32 at = 0; at < job.count; at++)
        if (!errors[at].empty()) failed(job.first + at, errors[at], true);
        else stable(job.first + at);
}

// To whom a run that is being filled is to be shown, all of it but a unit that stays out.
std::shared_ptr<Descriptor> TierEngine::shown_to(const Job& job) {
    std::lock_guard guard(mutex_);
    if (job.request->want == Want::touch || job.request->want == Want::pin || job.request->young) return nullptr;  // pinned: writable, when it is dirty
    auto found = clients_.find(job.request->client);
    if (found == clients_.end() || !found->second.is.faults) return nullptr;
    for (u32 unit = job.first; unit < job.first + job.count; unit++)
        if (unit != job.request->skip) local_[unit].mapped |= found->second.bit;
    return found->second.is.faults;
}

void TierEngine::show_filled(const Descriptor& faults, u64 start, const Job& job) {
    const u32 skip = job.request->skip;
    auto part = [&](u32 first, u32 end) {
        if (first < end) map_pages(faults.fd, start + u64(first - job.first) * UNIT, u64(end - first) * UNIT, false);
    };
    const u32 end = job.first + job.count;
    if (skip < job.first || skip >= end) return part(job.first, end);
    part(job.first, skip);
    part(skip + 1, end);
}

void TierEngine::provide(const Job& job) {
    const int error = allocate_file(data_, u64(job.first) * UNIT, u64(job.count) * UNIT);
    std::lock_guard guard(mutex_);
    for (u32 unit = job.first; unit < job.first + job.count; unit++) {
        const u64 word = load(words_.at(unit).word);
        if (error) {
            punch(unit, 1);
            set(unit, with_tier(word, Tier::empty));
            failed(unit, std::string("no_room:the file system behind the space has no memory left (") + std::strerror(error) + ")", true);
            continue;
        }
        set(unit, with_tier(word, Tier::dirty));
        policy_.filled(unit, !job.request->young);
        local_[unit].armed = job.request->young;
    }
    if (error) return;
    // Under the mutex, and after they are dirty: what is written there from now on must be found dirty by whoever comes next.
    if (job.request->want != Want::touch && !job.request->young && !(job.request->skip >= job.first && job.request->skip < job.first + job.count))
        show(job.request->client, job.first, job.count, false);
    for (u32 unit = job.first; unit < job.first + job.count; unit++) stable(unit);
}

// While processes without faults may write it: each word as it is at some moment, none torn.
static void copy_changing(char* to, const char* from, u64 bytes) {
    for (u64 at = 0; at < bytes; at += 8) {
        const u64 word = load(*reinterpret_cast<const u64*>(from + at), std::memory_order_relaxed);
        std::memcpy(to + at, &word, 8);
    }
}

void TierEngine::write(const Job& job, char* buffer) {
    const u64 start = now_ns();
    const char* from = reinterpret_cast<const char*>(address_of(job.first));  // nobody can write it: it is protected
    bool copy, unsure = true;
    {
        std::lock_guard guard(mutex_);
        copy = plain_ > 0;  // but by those who need no leave
        for (u32 at = 0; at < job.count; at++) {
            copy |= local_[job.first + at].plain_pins > 0;
            unsure &= local_[job.first + at].unsure;
        }
    }
    if (copy) copy_changing(buffer, from, job.count * UNIT), from = buffer;
    TierWord next[RUN];
    bool same = unsure;
    for (u32 at = 0; at < job.count; at++) {
        const u32 unit = job.first + at;
        const TierWord& is = words_.at(unit);
        if (same) same = flash_slot(is.word) != NO_SLOT && unit_check(from + at * UNIT, unit, is.word) == is.check;
        next[at].word = tier_word(Tier::clean, generation_of(is.word) + 1, job.slot + at);
        next[at].check = unit_check(from + at * UNIT, unit, next[at].word);
    }
    std::string error;
    if (!same) {
        try {
            flash_.write(job.slot, job.count, from);
        } catch (const FlashError& trouble) { error = (trouble.code == Code::no_room ? "no_room:" : "flash:") + std::string(trouble.what()); }
    }
    const u64 spent = now_ns() - start;
    std::vector<u32> drops;
    {
        std::lock_guard guard(mutex_);
        TierCounts& counts = words_.head().counts;
        counts.written_ns += spent;
        if (!error.empty()) failed_ns_ = now_ns();
        for (u32 at = 0; at < job.count; at++) {
            const u32 unit = job.first + at;
            Local& local = local_[unit];
            TierWord& word = words_.at(unit);
            const u32 old = flash_slot(word.word);
            const bool drop = std::exchange(local.drop, false);
            if (!error.empty() || same) {  // the slots that were taken for it are not used
                if (job.slot + at != old) free_slot(job.slot + at);
            } else {
                store(word.check, next[at].check);
                if (old != NO_SLOT && old != job.slot + at) free_slot(old);
                counts.written_bytes += UNIT;
            }
            const u64 now = error.empty() && !same ? next[at].word : word.word;
            if (std::exchange(local.stale, false) && local.frozen && error.empty()) {  // once more, with what was written since
                set(unit, with_tier(now, Tier::writing));
                if (drop) {
                    evicting_--;
                    policy_.kept(unit);
                }
                local.stay = local.unsure = false;
                std::vector<u32> again{unit};
                begin_runs(again);
                continue;
            }
            if (local.frozen) frozen_done(unit, {with_tier(now, Tier::flash), word.check}, error);
            const bool wanted = local.pins || (waiters_.count(unit) && std::any_of(waiters_[unit].begin(), waiters_[unit].end(), [](const Waiter& one) { return !one.request || one.request->want == Want::pin; }));
            const bool unseen = std::exchange(local.unseen, false);
            if (!error.empty()) {
                set(unit, with_tier(now, Tier::dirty));
                local.unsure = false;  // the slot may hold some of it
            } else if (local.plain_pins || unseen || (plain_ && unmovable(unit))) {
                set(unit, with_tier(now, Tier::dirty));
                local.unsure = copy || same;  // otherwise it may have changed between the checksum and the disk
            } else {
                local.unsure = false;
                set(unit, with_tier(now, drop && !wanted ? Tier::dropping : Tier::clean));
            }
            if (words_.tier(unit) == Tier::dropping) {
                drops.push_back(unit);
                continue;
            }
            local.stay = false;
            if (drop) {
                evicting_--;
                policy_.kept(unit);
            }
            if (!error.empty()) failed(unit, error + "; still in dram: " + names_at(unit), false);
            stable(unit);
        }
    }
    for (size_t at = 0; at < drops.size();) {
        u32 count = 1;
        while (at + count < drops.size() && drops[at + count] == drops[at] + count) count++;
        if (local_stays({Kind::drop, drops[at], count, nullptr, NO_SLOT})) {
            at += count;
            continue;
        }
        punch(drops[at], count);
        std::lock_guard guard(mutex_);
        for (u32 unit = drops[at]; unit < drops[at] + count; unit++) {
            set(unit, with_tier(load(words_.at(unit).word), Tier::flash));
            left_memory(unit);
        }
        at += count;
    }
}

}  // namespace osf::tiers
