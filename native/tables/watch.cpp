#include "tables/watch.hpp"

#include <algorithm>
#include <bit>

namespace osf::tables {

bool Watch::begin() {
    const TableHead& head = table_.head();
    joined_ = load(head.joined, std::memory_order_acquire);
    u64 left = load(head.writers, std::memory_order_acquire);
    if (count_) std::fill(std::begin(filter_), std::end(filter_), 0);
    writers_ = count_ = 0;
    if (u32(std::popcount(left)) > MOST) return false;
    for (; left; left &= left - 1) {
        const u32 writer = u32(std::countr_zero(left));
        const TableUndo& undo = table_.undo(writer);
        writer_[writers_] = writer;
        changes_[writers_++] = load(undo.changes, std::memory_order_acquire);
        // After the count: a change that is counted already is seen armed, or done.
        if (const u64 armed = load(undo.armed, std::memory_order_acquire)) note(armed - 1);
    }
    return true;
}

bool Watch::end() {
    std::atomic_thread_fence(std::memory_order_acquire);  // rows were read before
    if (load(table_.head().joined, std::memory_order_relaxed) != joined_) return false;
    for (u32 at = 0; at < writers_; at++) {
        const TableUndo& undo = table_.undo(writer_[at]);
        const u64 now = load(undo.changes, std::memory_order_acquire);
        if (now - changes_[at] >= TABLE_RECENT) return false;
        for (u64 change = changes_[at]; change < now; change++) note(load(undo.recent[change % TABLE_RECENT], std::memory_order_relaxed));
        if (now == changes_[at]) continue;
        std::atomic_thread_fence(std::memory_order_acquire);
        if (load(undo.changes, std::memory_order_relaxed) - changes_[at] >= TABLE_RECENT) return false;  // written over meanwhile
    }
    return true;
}

}  // namespace osf::tables
