// Giving memory back: when the last pin goes, and when a process dies.
//
// Pins are hazard pointers. Who removes an array from the index sets its state first and looks at all pins later; who
// drops a pin marks it RELEASING first and looks at the state later; both in one total order, so at least one of them
// sees the other. The remover that sees a plain pin leaves the array to its holder, who will see the state; one that
// sees a RELEASING pin cannot know, keeps its own (transient) pin and asks again later. Nothing is counted, so nothing
// is miscounted when a process is killed.
//
// Freeing happens under one lock, in batches. After a death the dead one's pins are cleared and a sweep looks at all
// records: those not live and not pinned are garbage (or live after all, if their word is in the index). One with a state
// that no process wrote is damaged: it is live if the index says so, and otherwise it stays.
#include <algorithm>
#include <bit>
#include <thread>

#include "space/space.hpp"

namespace osf::space {

constexpr u64 LIMBO_COUNT = 32, LIMBO_BYTES = 256 * KIB;

// A release store is enough: who still sees the pin sees it RELEASING, or scans under the lock that we hold.
void Space::drop(u32 pin) {
    store(members.pin(pin), 0);
    members.give_pin(pin);
}

void Space::release(const Held& held) noexcept {
    if (!members.joined()) return;
    u64& pin = members.pin(held.pin);
    swap(pin, held.record | RELEASING);
    Record& record = this->record(held);
    if (load(record.state) == live) {
        drop(held.pin);
    } else if (read_only_) {
        drop(held.pin);
        members.add_orphan();
    } else {
        u64 bytes = record.nbytes;
        store(pin, held.record | TRANSIENT, std::memory_order_seq_cst);
        retire(held.pin, bytes);
    }
}

void Space::retire(u32 pin, u64 bytes) noexcept {
    bool full, behind;
    {
        std::lock_guard guard(limbo_mutex_);
        limbo_.push_back(pin);
        limbo_bytes_ += bytes;
        full = limbo_.size() >= LIMBO_COUNT || limbo_bytes_ >= LIMBO_BYTES;
        // Whoever is freeing now is usually done soon; if it seems not to be, it may be dead.
        behind = limbo_.size() >= 8 * LIMBO_COUNT || limbo_bytes_ >= 8 * LIMBO_BYTES;
    }
    if (!full) return;
    try {
        drain(behind);
    } catch (const Error&) {}  // they stay pinned; the next drain or, after this process, a sweep frees them
}

void Space::drain(bool wait) {
    Grant grant = lock_take(roots().collect, members, wait ? -1 : 0);
    if (grant == Grant::timed_out) return;
    try {
        if (grant == Grant::owner_died && recovery) {
            members.add_orphan();
            reap();
            sweep_if_needed();
        }
        drain_locked();
    } catch (...) {
        lock_drop(roots().collect);
        throw;
    }
    lock_drop(roots().collect);
}

void Space::tidy() {
    {
        std::lock_guard guard(limbo_mutex_);
        if (limbo_.empty()) return;
    }
    drain(false);
}

void Space::collect() {
    if (read_only_) return;
    bool died = lock_take(roots().collect, members) == Grant::owner_died && recovery;
    try {
        if (died) members.add_orphan();
        if (recovery) reap();
        sweep_if_needed();
        drain_locked();
    } catch (...) {
        lock_drop(roots().collect);
        throw;
    }
    lock_drop(roots().collect);
}

// All pins but the given ones of this member, sorted; the RELEASING flag kept.
void Space::snapshot(std::vector<u64>& pinned, const std::vector<u32>& except) const {
    pinned.clear();
    for (u32 slot = 0; slot < members.slots_high(); slot++) {
        const Member& member = members.at(slot);
        if (load(member.state) != 1) continue;
        const u64* pins = members.pins(slot);
        u32 high = members.pins_high(slot);
        bool own = slot == members.slot();
        for (u32 pin = 0; pin < high; pin++) {
            u64 word = load(pins[pin]);
            if ((word & ~FLAGS) == 0) continue;
            if (own && std::binary_search(except.begin(), except.end(), pin)) continue;
            pinned.push_back(word & ~(FLAGS & ~RELEASING));
        }
    }
    std::sort(pinned.begin(), pinned.end());
}

enum class Pinned { no, maybe, yes };

static Pinned look(const std::vector<u64>& pinned, u64 record) {
    auto at = std::lower_bound(pinned.begin(), pinned.end(), record);
    if (at == pinned.end() || (*at & ~FLAGS) != record) return Pinned::no;
    return *at & RELEASING ? Pinned::maybe : Pinned::yes;  // a plain pin sorts before
}

// If the index leads to it after all it is live, from now on. All under the stripe's lock: a remover that comes next must
// find it live, and a rename that came between must not hide it.
bool Space::revive(u64 offset) {
    for (;;) {
        std::string name = space::name_of(record(offset), meta);
        if (name.empty()) return false;
        u64 hash = hash_name(name), stripe = Index::stripe_of(hash);
        index.lock(stripe);
        bool same = space::name_of(record(offset), meta) == name, here = same && index.points(hash, offset);
        if (here) store(record(offset).state, u64(live), std::memory_order_seq_cst);
        index.unlock(stripe);
        if (same) return here;
    }
}

void Space::mend(u64 offset) {
    u64& state = record(offset).state;
    const u64 was = load(state);
    const std::string name = space::name_of(record(offset), meta);
    if ((was == draft || was == leaving) && (name.empty() || name[0] == HIDDEN) && !revive(offset)) cas(state, was, u64(gone));
}

void Space::drain_locked() {
    std::vector<u32> batch;
    {
        std::lock_guard guard(limbo_mutex_);
        batch.swap(limbo_);
        limbo_bytes_ = 0;
    }
    if (batch.empty()) return;
    std::vector<u32> keep, doomed, order = batch;
    std::sort(batch.begin(), batch.end());
    std::vector<u64> pinned;
    snapshot(pinned, batch);
    std::sort(order.begin(), order.end(), [&](u32 a, u32 b) { return load(members.pin(a)) < load(members.pin(b)); });
    u64 previous = 0;
    for (u32 pin : order) {
        u64 offset = load(members.pin(pin)) & ~FLAGS;
        bool twice = offset == previous;
        previous = offset;
        if (twice || !meta.slot_taken(offset)) {
            drop(pin);
            continue;
        }
        u64& state = record(offset).state;
        Pinned held = look(pinned, offset);
        if (held == Pinned::maybe) keep.push_back(pin);
        else if (held == Pinned::yes || load(state) == live) drop(pin);
        else if ((load(state) == draft || load(state) == leaving || !is_state(load(state))) && revive(offset)) drop(pin);
        else if (!is_state(load(state))) drop(pin);  // damage: nobody said that it may be freed, and the audit counts it
        else {
            swap(state, u64(dead));  // from here `at` refuses it
            doomed.push_back(pin);
        }
    }
    step();
    std::sort(doomed.begin(), doomed.end());
    if (!doomed.empty()) snapshot(pinned, doomed);  // not `batch`: what was dropped of it may be another thread's pin by now
    for (u32 pin : doomed) {
        u64 offset = load(members.pin(pin)) & ~FLAGS;
        Pinned held = look(pinned, offset);
        if (held == Pinned::no) {
            free_record(pin);
        } else {  // `at` came between the two looks
            store(record(offset).state, u64(gone), std::memory_order_seq_cst);
            if (held == Pinned::maybe) keep.push_back(pin);
            else drop(pin);
        }
    }
    if (keep.empty()) return;
    std::lock_guard guard(limbo_mutex_);
    limbo_.insert(limbo_.end(), keep.begin(), keep.end());
}

void Space::free_record(u32 pin) {
    Record& record = this->record(load(members.pin(pin)) & ~FLAGS);
    if (u64 ref = load(record.data)) {
        data.set_owner(ref, 0);
        data.free(record.data);
    }
    for (u64& name : record.names)
        if (load(name)) meta.free(name);
    record.renamed = record.nbytes = record.check = 0;
    record.dtype = record.descr_len = record.name_len = 0;
    record.ndim = record.kind = 0;
    store(record.state, u64(state_free));
    step();
    meta.free(members.pin(pin));
    members.give_pin(pin);
}

void Space::reap() {
    members.settle_heirs();
    for (u32 slot = 0; slot < members.slots_high(); slot++) {
        if (!members.seize(slot)) continue;
        members.add_orphan();
        members.clear(slot);
        step();
    }
}

// Once for all that was counted before; a sweep that did not come to its end is done again by the next collector.
void Space::sweep_if_needed() {
    u64 orphans = load(members.head().orphans);
    if (orphans == load(members.head().swept)) return;
    sweep();
    store(members.head().swept, orphans);
    step();
}

void Space::sweep() {
    // First what the dead left half done under their locks: until then, blocks are neither taken nor free.
    index.settle();
    data.settle();
    meta.settle();
    std::vector<u64> suspects;
    u64 words = div_up(meta.limit(), CHUNK_PAGES * 64);
    for (u64 word = 0; word < words; word++) {
        for (u64 map = load(meta.slabs()[word]); map; map &= map - 1) {
            u64 chunk_index = word * 64 + u64(std::countr_zero(map));
            if (meta.holds_names(chunk_index)) continue;
            const Chunk& chunk = meta.chunk(chunk_index);
            u64 bytes = class_bytes(load(chunk.cls));
            for (u64 slot = 0; slot < CHUNK / bytes; slot++) {
                if (!(load(chunk.bits[slot / 64]) >> (slot % 64) & 1)) continue;
                u64 offset = meta.chunk_offset(chunk_index) + slot * bytes;
                if (load(record(offset).state) != live) suspects.push_back(offset);
            }
        }
    }
    // Pins are looked at after the slots: a new record's pin is there before its slot counts as taken.
    std::vector<u64> pinned;
    snapshot(pinned, {});
    for (u64 offset : suspects) {
        if (look(pinned, offset) != Pinned::no) continue;
        u32 pin = members.take_pin();
        swap(members.pin(pin), offset | TRANSIENT);
        std::lock_guard guard(limbo_mutex_);
        limbo_.push_back(pin);
    }
}

}  // namespace osf::space
