#include "tables/versions.hpp"

#include <algorithm>
#include <bit>
#include <ctime>

#include "tables/watch.hpp"

namespace osf::tables {

// Short waits first: a stripe is held for less than a microsecond, unless its owner lost the processor or died.
class Patience {
public:
    bool over() {                                // time to ask whether the owner lives
        if (turns_++ < 64) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
            return false;
        }
        timespec nap{0, 50'000};
        nanosleep(&nap, nullptr);
        return turns_ > 80;
    }

private:
    int turns_ = 0;
};

// With the stripe held: an armed record of one of its rows is of a dead writer.
void roll_back(Table& table, u64 stripe) {
    const TableHead& head = table.head();
    auto rows = table.snapshot();
    for (u32 writer = 0; writer < TABLE_WRITERS; writer++) {
        TableUndo& undo = table.undo(writer);
        const u64 row = load(undo.armed) - 1;
        if (row == ~0ull || (row & (head.stripes - 1)) != stripe || row >= rows->rows) continue;
        const Snapshot::Part& part = rows->part_of(row);
        std::memcpy(part.rows + (row - part.first) * head.row_bytes, table.undo_row(writer), head.row_bytes);
        step();
        if (head.state_bytes) std::memcpy(part.state + (row - part.first) * head.state_bytes, table.undo_state(writer), head.state_bytes);
        step();
        store(undo.armed, 0ull);
    }
}

u64 take_stripe(Table& table, u64 row) {
    u64& word = table.stripe(row);
    const u64 self = u64(table.space->members.executor()) << 32;
    if (!self) throw Error(Code::closed, "this process is no member of the space: it cannot change tables there");
    Patience patience;
    for (;;) {
        u64 seen = load(word, std::memory_order_relaxed);
        if (!stripe_owner(seen)) {
            if (cas(word, seen, self | u32(seen))) return u32(seen);
        } else if (patience.over() && !table.space->members.alive(u32(stripe_owner(seen))) && cas(word, seen, self | u32(seen))) {
            roll_back(table, row & (table.head().stripes - 1));
            return u32(seen);
        }
    }
}

Whole whole_row(Table& table, u64 row, const char* at) {
    const u64& word = table.stripe(row);
    Patience patience;
    for (;;) {
        const u64 seen = load(word, std::memory_order_acquire);
        if (!stripe_owner(seen)) return {at, seen};
        if (!patience.over() || table.space->members.alive(u32(stripe_owner(seen)))) continue;
        if (!table.space->read_only()) {
            give_stripe(table, row, take_stripe(table, row));
            continue;
        }
        // Who may not repair reads what the dead one saved. Whoever repairs takes the stripe first, and so changes the word.
        for (u32 writer = 0; writer < TABLE_WRITERS; writer++)
            if (load(table.undo(writer).armed, std::memory_order_acquire) == row + 1) return {table.undo_row(writer), seen};
        return {at, seen};
    }
}

template <class I>
u64 Versions::note(const I* rows, u64 count) {
    const u64* stripes = table_.stripes();
    const u64 mask = table_.head().stripes - 1;
    u64 owners = 0;
    for (u64 index = 0; index < count; index++) {
        at_[index] = u32(u64(rows[index]) & mask);
        words_[index] = load(stripes[at_[index]], std::memory_order_relaxed);
        owners |= stripe_owner(words_[index]);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    return owners;
}

bool Versions::look(const Ids& rows, u64 count) {
    const u64 owners = rows.wide ? note(static_cast<const std::int64_t*>(rows.at), count) : note(static_cast<const std::int32_t*>(rows.at), count);
    if (!owners) return true;
    for (u64 index = 0; index < count; index++) whole_row(table_, rows[index], nullptr);  // waits
    return false;
}

const char* const* Versions::copies(const Ids& rows, u64 count, const RowShape& shape, const char* const* at) {
    bytes_.resize((count + 1) * shape.bytes);
    copied_.assign(count + shape.ahead, bytes_.data());
    for (u64 index = 0; index < count; index++) {
        char* copy = bytes_.data() + index * shape.bytes;
        copied_[index] = copy;
        const u64 row = rows[index];
        for (u64 line = 0; line < shape.bytes; line += 64) __builtin_prefetch(at[index + shape.ahead] + line);
        for (;;) {
            const Whole found = whole_row(table_, row, at[index]);
            std::memcpy(copy, found.row, shape.bytes);
            std::atomic_thread_fence(std::memory_order_acquire);
            if (load(table_.stripe(row), std::memory_order_relaxed) == found.word) break;
        }
    }
    return copied_.data();
}

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
