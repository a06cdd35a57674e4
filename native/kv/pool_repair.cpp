// After a process died with the pool's lock, and for tests: everything that is derived, from the entries.
//
// Whatever instant it died at, the entries are one of: free; being filled (by somebody alive, or not); live, perhaps not yet in its
// bucket; leaving, perhaps no more in its bucket. A leaving block's bytes are whole and its parent has not been freed, for children
// go first: so all of them are made live again.
#include <algorithm>
#include <vector>

#include "kv/pool.hpp"

namespace osf::kv {

void KvPool::recover() {
    std::vector<u32> unsure;  // whether their buckets have them
    if (u32 last = load(head_->linking); last && entries_[last - 1].state == kv_live) unsure.push_back(last - 1);
    for (u32 slot = 0; slot < head_->slots; slot++) {
        KvEntry& entry = entries_[slot];
        if (entry.state == kv_leaving) unsure.push_back(slot);
    }
    for (u32 slot : unsure) {  // before they count as live: who dies here leaves them to the next
        if (!linked(slot)) link(slot);
        store(entries_[slot].state, u32(kv_live), std::memory_order_seq_cst);
        step();
    }
    for (u32 slot = 0; slot < head_->slots; slot++) {
        KvEntry& entry = entries_[slot];
        if (entry.state == kv_filling && !space->members.alive(entry.owner)) store(entry.state, u32(kv_free), std::memory_order_seq_cst);
        step();
        entry.children = entry.leaf = 0;
    }
    // A block leaves its bucket before its slot counts as free, so no bucket leads to a free one. A live one may be missing.
    for (u32 at = 0; at < head_->tenants; at++) store(tenants_[at].used, 0u);
    for (u32* count : {&head_->free_count, &head_->leaf_count, &head_->filling, &head_->live}) store(*count, 0u);
    for (u32 slot = head_->slots; slot-- > 0;) {
        KvEntry& entry = entries_[slot];
        if (entry.state == kv_free) {
            push_free(slot);
            continue;
        }
        change(tenants_[entry.tenant].used, 1);
        if (entry.state == kv_filling) {
            change(head_->filling, 1);
            continue;
        }
        change(head_->live, 1);
        if (entry.parent) entries_[entry.parent - 1].children++;
    }
    head_->soonest_ns = 1;  // it may be anything: look
    for (u32 slot = 0; slot < head_->slots; slot++) list(slot);
}

void KvPool::reclaim() {
    if (!head_->filling) return;
    for (u32 slot = 0; slot < head_->slots; slot++) {
        const KvEntry& entry = entries_[slot];
        if (entry.state == kv_filling && !space->members.alive(entry.owner)) drop_filled(slot);
    }
}

KvAudit KvPool::audit() {
    tend(0);
    Guard guard(*this);
    KvAudit found;
    std::vector<u32> children(head_->slots), used(head_->tenants);
    std::vector<u8> stacked(head_->slots);
    for (u32 at = 0; at < head_->free_count; at++) found.miscounted += stacked[free_[at]]++ != 0;
    u32 leaves = 0;
    for (u32 slot = 0; slot < head_->slots; slot++) {
        const KvEntry& entry = entries_[slot];
        leaves += leaf(entry);
        found.miscounted += leaf(entry) != (entry.leaf != 0) || (entry.leaf && leaves_[entry.leaf - 1] != slot);
        found.leaked += (entry.state == kv_free) != (stacked[slot] != 0) || entry.state == kv_leaving;
        found.free += entry.state == kv_free;
        found.filling += entry.state == kv_filling;
        if (entry.state == kv_filling || entry.state == kv_live) used[entry.tenant]++;
        if (entry.state != kv_live) continue;
        found.live++;
        if (entry.parent) {
            const KvEntry& parent = entries_[entry.parent - 1];
            children[entry.parent - 1]++;
            found.orphans += parent.state != kv_live || parent.position + 1 != entry.position;
        } else {
            found.orphans += entry.position != 0;
        }
        KvKey key;
        std::copy_n(entry.key, 4, key.words);
        found.unfindable += find(key) != slot;
    }
    for (u32 slot = 0; slot < head_->slots; slot++)
        if (entries_[slot].state == kv_live) found.miscounted += children[slot] != entries_[slot].children;
    for (u32 at = 0; at < head_->tenants; at++) found.miscounted += used[at] != tenants_[at].used;
    found.miscounted += found.free != head_->free_count || found.filling != head_->filling || found.live != head_->live || leaves != head_->leaf_count;
    return found;
}

}  // namespace osf::kv
