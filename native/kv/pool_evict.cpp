#include "kv/pool_evict.hpp"

#include <algorithm>
#include <queue>

#include "kv/policy.hpp"

namespace osf::kv {

KvEviction::KvEviction(KvPool& pool, bool for_room) : pool_(pool), for_room_(for_room) { look(pins_); }

// Pins of dead members count until they are reaped (tend): it is no harm to keep a block.
void KvEviction::look(std::vector<u32>& pins) const {
    pins.clear();
    const Members& members = pool_.space->members;
    const u64 first = pool_.entries_offset_, end = first + u64(pool_.head().slots) * sizeof(KvEntry);
    for (u32 slot = 0; slot < members.slots_high(); slot++) {
        if (load(members.at(slot).state) != 1) continue;
        const u64* words = members.pins(slot);
        for (u32 pin = 0, high = members.pins_high(slot); pin < high; pin++) {
            u64 word = load(words[pin]);
            if (word >= first && word < end) pins.push_back(u32((word - first) / sizeof(KvEntry)));
        }
    }
    std::sort(pins.begin(), pins.end());
}

bool KvEviction::pinned(u32 slot) const { return std::binary_search(pins_.begin(), pins_.end(), slot); }

bool KvEviction::doom(u32 slot) {
    KvEntry& entry = pool_.entry(slot);
    if (!pool_.leaf(entry) || pinned(slot)) return false;
    swap(entry.state, u32(kv_leaving));
    step();
    doomed_.push_back(slot);
    pool_.unlist(slot);
    if (!entry.parent) return true;
    KvEntry& parent = pool_.entry(entry.parent - 1);
    kv_inherit(parent, entry);
    parent.children--;
    pool_.list(entry.parent - 1);
    return true;
}

u32 KvEviction::finish() {
    if (doomed_.empty()) return 0;
    look(pins_);
    u32 freed = 0;
    for (u32 slot : doomed_) {
        KvEntry& entry = pool_.entry(slot);
        if (entry.children || pinned(slot)) {    // somebody came between the two looks, for it or for a child that stays
            store(entry.state, u32(kv_live), std::memory_order_seq_cst);
            pool_.list(slot);
            if (!entry.parent) continue;
            pool_.entry(entry.parent - 1).children++;
            pool_.list(entry.parent - 1);
            continue;
        }
        if (for_room_) pool_.remember(entry);
        pool_.unlink(slot);
        store(entry.state, u32(kv_free), std::memory_order_seq_cst);
        step();
        change(pool_.tenants_[entry.tenant].used, -1);
        change(pool_.head().live, -1);
        pool_.push_free(slot);
        freed++;
    }
    doomed_.clear();
    std::atomic_ref<u64>(pool_.head().evicted_blocks).fetch_add(freed, std::memory_order_relaxed);
    return freed;
}

using Lowest = std::priority_queue<KvWorth, std::vector<KvWorth>, std::greater<>>;

// The lowest of a sample, which is filled up again as blocks go: all leaves would be too many to look at, and their values change
// with time, each in its own way, so that no order of them can be kept.
u32 KvPool::evict_lowest(u32 want, float worth) {
    constexpr u32 ASKED = 512, MORE = 4;
    KvEviction round(*this, true);
    Lowest lowest;
    const u64 clock = load(head_->clock);
    auto ask = [&](u32 slot) {
        if (!round.pinned(slot)) lowest.push(kv_worth(entries_[slot], slot, *head_, *tables_, clock));
    };
    bool all = false;
    auto ask_some = [&](u32 most) {
        if (all) return;
        all = head_->leaf_count <= most;
        for (u32 at = 0; at < std::min(head_->leaf_count, most); at++) ask(leaves_[all ? at : random() % head_->leaf_count]);
    };
    for (ask_some(ASKED); round.count() < want;) {
        if (lowest.empty()) {
            if (all) break;
            ask_some(NO_SLOT);
            continue;
        }
        if (lowest.top().value > worth) break;
        const u32 slot = lowest.top().slot, parent = entries_[slot].parent;
        lowest.pop();
        if (!round.doom(slot)) continue;         // asked twice
        if (parent && leaf(entries_[parent - 1])) ask(parent - 1);
        if (lowest.size() < ASKED) ask_some(MORE);
    }
    return round.finish();
}

// A tenant at its quota gives up its own. Rare enough to look at all entries.
u32 KvPool::evict_of(u32 tenant, u32 want) {
    Lowest lowest;
    const u64 clock = load(head_->clock);
    auto ask = [&](u32 slot) {
        if (entries_[slot].tenant == tenant && leaf(entries_[slot])) lowest.push(kv_worth(entries_[slot], slot, *head_, *tables_, clock));
    };
    for (u32 slot = 0; slot < head_->slots; slot++) ask(slot);
    KvEviction round(*this, true);
    while (round.count() < want && !lowest.empty()) {
        const u32 slot = lowest.top().slot, parent = entries_[slot].parent;
        lowest.pop();
        if (round.doom(slot) && parent) ask(parent - 1);
    }
    return round.finish();
}

u32 KvPool::evict(u32 slot, const KvKey& key, u32 keep) {
    need_write();
    Guard guard(*this);
    if (load(entries_[slot].state) != kv_live || !has_key(slot, key)) return 0;
    KvEviction round(*this);
    for (u32 at = slot + 1; at && entries_[at - 1].position >= keep && round.doom(at - 1);) at = entries_[at - 1].parent;
    return round.finish();
}

u32 KvPool::drop_unused(u32 tenant, u32 most) {
    KvEviction round(*this);
    for (u32 slot = 0; slot < head_->slots && round.count() < most; slot++) {
        for (u32 at = slot + 1; at && round.count() < most;) {
            const KvEntry& entry = entries_[at - 1];
            if ((tenant != NO_SLOT && entry.tenant != tenant) || !round.doom(at - 1)) break;
            at = entry.parent;
        }
    }
    return round.finish();
}

u32 KvPool::clear(const std::string_view* name) {
    need_write();
    u32 tenant = NO_SLOT;
    if (name && (tenant = find_tenant(hash_name(*name) | 1)) == NO_SLOT) return 0;
    constexpr u32 ROUND = 8192;                  // others wait for milliseconds, not for all of a large pool
    u32 total = 0;
    {
        Guard guard(*this);
        for (u32 slot = 0; slot < head_->slots; slot++) {
            KvEntry& entry = entries_[slot];
            if (entry.state != kv_live || !(entry.flags & kv_sticky) || (tenant != NO_SLOT && entry.tenant != tenant)) continue;
            store(entry.flags, u16(entry.flags & ~kv_sticky));
            list(slot);
        }
    }
    for (;;) {
        Guard guard(*this);
        u32 gone = drop_unused(tenant, ROUND);
        total += gone;
        if (gone < ROUND / 2) return total;
    }
}

bool KvPool::stick(u32 slot, bool on) {
    Guard guard(*this);
    KvEntry& entry = entries_[slot];
    const bool was = entry.flags & kv_sticky;
    store(entry.flags, u16(on ? entry.flags | kv_sticky : entry.flags & ~kv_sticky));
    list(slot);
    return was;
}

u32 KvPool::expire() {
    const u64 now = wall_ns();
    if (!head_->soonest_ns || head_->soonest_ns > now) return 0;
    auto expiry = [&](u32 slot) { return entries_[slot].state == kv_live ? load(entries_[slot].expires_ns) : 0; };
    KvEviction round(*this);
    for (u32 slot = 0; slot < head_->slots; slot++)
        for (u32 at = slot + 1; at && expiry(at - 1) - 1 < now && round.doom(at - 1);) at = entries_[at - 1].parent;
    u32 gone = round.finish();
    head_->soonest_ns = 0;
    for (u32 slot = 0; slot < head_->slots; slot++) {
        const u64 expires = expiry(slot);
        if (expires && (!head_->soonest_ns || expires < head_->soonest_ns)) head_->soonest_ns = expires;
    }
    std::atomic_ref<u64>(head_->expired_blocks).fetch_add(gone, std::memory_order_relaxed);
    return gone;
}

}  // namespace osf::kv
