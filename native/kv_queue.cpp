// The lists that the lock guards: buckets, free slots, and the queue of leaves, lowest priority first.
//
// The queue is a binary heap of priorities as they were when an item was pushed. They only rise, so an item that comes out is either
// lowest, or pushed again with what it is now. Blocks that are no leaves any more stay in it until they come out. All but the
// buckets is derived.
#include <utility>

#include "kv_policy.hpp"
#include "kv_pool.hpp"

namespace osf {

// Whole after either store: readers see the entry or not.
void KvPool::link(u32 slot) {
    KvEntry& entry = entries_[slot];
    u32& head = bucket(entry);
    store(entry.next, load(head));
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

void KvPool::queue(u32 slot) {
    KvEntry& entry = entries_[slot];
    if (entry.queued || !leaf(entry)) return;
    entry.queued = 1;
    queue_[head_->queue_count] = {kv_priority(entry, *head_), slot, 0};
    sift_up(head_->queue_count++);
}

bool KvPool::pop(KvItem& item) {
    if (!head_->queue_count) return false;
    item = queue_[0];
    queue_[0] = queue_[--head_->queue_count];
    sift_down(0);
    entries_[item.slot].queued = 0;
    return true;
}

void KvPool::sift_up(u32 at) {
    for (; at; at = (at - 1) / 2) {
        KvItem &item = queue_[at], &above = queue_[(at - 1) / 2];
        if (item.priority >= above.priority) return;
        std::swap(item, above);
    }
}

void KvPool::sift_down(u32 at) {
    for (const u32 count = head_->queue_count;;) {
        u32 lowest = at;
        for (u32 below : {2 * at + 1, 2 * at + 2})
            if (below < count && queue_[below].priority < queue_[lowest].priority) lowest = below;
        if (lowest == at) return;
        std::swap(queue_[at], queue_[lowest]);
        at = lowest;
    }
}

}  // namespace osf
