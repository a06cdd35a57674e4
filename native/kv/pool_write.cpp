// Slots to fill, and the filled ones published.
#include <algorithm>
#include <thread>

#include "kv/policy.hpp"
#include "kv/pool.hpp"

namespace osf::kv {

constexpr u64 TEND_NS = 1'000'000'000, TEND_SOON_NS = 20'000'000;  // at most so often, and when nothing else helps

u32 KvPool::take_free(u32 want, u32 tenant, std::vector<u32>& out) {
    const u32 self = space->members.executor();
    u32 taken = std::min(want, head_->free_count);
    for (u32 count = 0; count < taken; count++) {
        u32 slot = free_[head_->free_count - 1];
        KvEntry& entry = entries_[slot];
        entry.owner = self;
        entry.tenant = u16(tenant);
        entry.flags = 0;
        entry.children = 0;
        entry.nbytes = entry.nonce = entry.parent = 0;
        store(entry.state, u32(kv_filling));
        step();
        change(head_->free_count, -1);
        change(head_->filling, 1);
        change(tenants_[tenant].used, 1);
        out.push_back(slot);
    }
    return taken;
}

// Some more than wanted are evicted at a time, for each round looks at all pins; of a tenant at its quota as many as `later` needs, for it looks
// at all entries.
void KvPool::make_room(u32 want, u32 later, u32 tenant, float worth) {
    constexpr u32 MUCH = 8192;
    KvTenant& own = tenants_[tenant];
    if (own.quota && own.used + want > own.quota) {
        u32 more = own.used + want - own.quota;
        evict_of(tenant, std::max({more, std::min({later, MUCH, own.quota}), std::min(32u, own.quota / 256)}));
        want = own.used < own.quota ? std::min(want, own.quota - own.used) : 0;
    }
    if (head_->free_count < want) evict_lowest(std::max(want - head_->free_count, std::min(32u, head_->slots / 256)), worth);
}

u32 KvPool::allocate(u32 want, u32 tenant, std::vector<u32>& out, float worth) {
    need_write();
    if (load(head_->free_count) < want) tend(TEND_NS);  // before the living lose anything
    u32 taken = take_some(want, tenant, out, worth);
    if (taken == want) return taken;
    tend(TEND_SOON_NS);
    return taken + take_some(want - taken, tenant, out, worth);
}

// A thousand at a time: others wait for a few milliseconds, not for all of it.
u32 KvPool::take_some(u32 want, u32 tenant, std::vector<u32>& out, float worth) {
    constexpr u32 ROUND = 1024;
    u32 taken = 0;
    for (u32 got = 1; got && taken < want; taken += got) {
        if (taken) std::this_thread::yield();    // who waits for the lock would else see it taken again
        Guard guard(*this);
        u32 most = std::min(want - taken, ROUND);
        make_room(most, want - taken, tenant, worth);
        const KvTenant& own = tenants_[tenant];
        if (own.quota) most = std::min(most, own.used < own.quota ? own.quota - own.used : 0);
        got = take_free(most, tenant, out);
    }
    return taken;
}

// A process's first store into a page of shared memory costs a fault; its first load maps sixteen pages at once, and writable.
void KvPool::touch(u32 slot) {
    if (space->pager || touched_[slot].exchange(true, std::memory_order_relaxed)) return;
    const volatile char* at = block(slot);
    for (u64 offset = 0; offset < head_->stride; offset += PAGE) (void)at[offset];
}

void KvPool::drop_filled(u32 slot) {
    KvEntry& entry = entries_[slot];
    store(entry.state, u32(kv_free), std::memory_order_seq_cst);
    step();
    change(tenants_[entry.tenant].used, -1);
    change(head_->filling, -1);
    push_free(slot);
}

void KvPool::give_back(std::span<const u32> slots, u32 owner) noexcept {
    if (slots.empty() || space->members.executor() != owner) return;  // of a parent process
    try {
        Guard guard(*this);
        for (u32 slot : slots) drop_filled(slot);
    } catch (const Error&) {}  // closed meanwhile: they are reclaimed as a dead member's
}

u32 KvPool::publish(std::span<const u32> slots, std::span<const KvKey> keys, u32& parent, u32 position, u64 expires_ns, KvPin& pin,
                    const KvUse& use, bool whole) {
    constexpr u64 ROUND = 256;
    u32 fresh = 0;
    bool late = false;
    for (u64 from = 0; from < slots.size(); from += ROUND) {
        Guard guard(*this);
        const u64 clock = std::atomic_ref<u64>(head_->clock).fetch_add(std::min(ROUND, slots.size() - from)) + 1;
        if (expires_ns && (!head_->soonest_ns || expires_ns < head_->soonest_ns)) head_->soonest_ns = expires_ns;
        for (u64 at = from; at < std::min<u64>(from + ROUND, slots.size()); at++) {
            u32 slot = slots[at], there = find(keys[at]);
            KvEntry& entry = entries_[slot];
            late = (late && whole) || there != NO_SLOT;
            if (late) {                          // another put it first
                drop_filled(slot);
                if (there == NO_SLOT) continue;
                if (load(entries_[there].expires_ns)) renew(there, expires_ns);
                parent = there;
                continue;
            }
            store(entry.life, entry.life | 1);
            for (int word = 0; word < 4; word++) store(entry.key[word], keys[at].words[word]);
            store(entry.parent, parent == NO_SLOT ? 0 : parent + 1);
            store(entry.position, position + u32(at));
            store(entry.expires_ns, expires_ns);
            const KvPast past = recall(keys[at], use.habit | (position + at == use.last ? KV_TIP : 0));
            kv_began(entry, clock, past.hits, past.habit);
            store(head_->linking, slot + 1);
            step();
            store(entry.state, u32(kv_live), std::memory_order_seq_cst);  // from here it is there, whoever dies
            step();
            link(slot);
            if (parent != NO_SLOT) {
                entries_[parent].children++;
                unlist(parent);
            }
            change(head_->filling, -1);
            change(head_->live, 1);
            list(slot);
            parent = slot;
            fresh++;
        }
        pin.move(parent);
        learn();
    }
    std::atomic_ref<u64>(head_->stored_blocks).fetch_add(fresh, std::memory_order_relaxed);
    return fresh;
}

void KvPool::renew(u32 slot, u64 expires_ns) {
    for (u32 at = slot + 1; at; at = load(entries_[at - 1].parent)) {
        u64& expires = entries_[at - 1].expires_ns;
        u64 old = load(expires);
        if (old && (!expires_ns || old < expires_ns)) store(expires, expires_ns);
    }
}

// What dead processes left: their pins by the space's own means, the slots they were filling by ours.
void KvPool::tend(u64 every_ns) {
    const u64 time = now_ns(), last = load(head_->tended_ns);
    if (every_ns && (time - last < every_ns || !cas(head_->tended_ns, last, time))) return;
    space->collect();
    Guard guard(*this);
    reclaim();
    expire();
}

}  // namespace osf::kv
