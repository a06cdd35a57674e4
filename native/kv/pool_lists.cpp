// The lists that the lock guards: buckets, free slots, and leaves, which are all that may be evicted. All but the buckets is derived.
#include "kv/pool.hpp"

namespace osf::kv {

// Whole after either store: readers see the entry or not.
void KvPool::link(u32 slot) {
    KvEntry& entry = entries_[slot];
    u32& head = bucket(entry);
    store(entry.next, load(head));
    step();
    store(entry.life, (entry.life + 1) & ~1u);
    step();
    store(head, slot + 1, std::memory_order_seq_cst);
    step();
}

bool KvPool::linked(u32 slot) const {
    for (u32 at = load(bucket(entries_[slot])); at; at = load(entries_[at - 1].next))
        if (at - 1 == slot) return true;
    return false;
}

void KvPool::unlink(u32 slot) {
    KvEntry& entry = entries_[slot];
    for (u32* at = &bucket(entry); u32 next = load(*at); at = &entries_[next - 1].next) {
        if (next - 1 != slot) continue;
        store(*at, load(entry.next));
        step();
        return;
    }
}

void KvPool::push_free(u32 slot) {
    free_[head_->free_count] = slot;
    change(head_->free_count, 1);
}

void KvPool::list(u32 slot) {
    KvEntry& entry = entries_[slot];
    if (!leaf(entry)) return unlist(slot);
    if (entry.leaf) return;
    leaves_[head_->leaf_count] = slot;
    entry.leaf = ++head_->leaf_count;
}

void KvPool::unlist(u32 slot) {
    KvEntry& entry = entries_[slot];
    if (!entry.leaf) return;
    const u32 last = leaves_[--head_->leaf_count];
    leaves_[entry.leaf - 1] = last;
    entries_[last].leaf = entry.leaf;
    entry.leaf = 0;
}

}  // namespace osf::kv
