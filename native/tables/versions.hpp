// Rows that change while they are read: see tables/format.hpp for stripes and undo records.
#pragma once

#include <atomic>
#include <vector>

#include "tables/read.hpp"

namespace osf::tables {

constexpr u64 stripe_owner(u64 word) { return word >> 32; }

// Takes the stripe of a row for this process, and rolls back what a dead process left half changed there.
u64 take_stripe(Table& table, u64 row);
void roll_back(Table& table, u64 stripe);        // with the stripe held
inline void give_stripe(Table& table, u64 row, u64 changes) { store(table.stripe(row), u64(u32(changes + 1))); }

// What a reader may read of a row now, and the word that its stripe must still have afterwards.
struct Whole {
    const char* row;
    u64 word;
};
Whole whole_row(Table& table, u64 row, const char* at);

// Reads bags until no row of one has changed meanwhile. It does not wait for writers of other rows.
class Versions {
public:
    explicit Versions(Table& table) : table_(table) {}

    template <class Read>
    void whole(const Ids& rows, u64 count, const RowShape& shape, const char* const* at, const Read& read) {
        const int attempts = count <= LONG ? 4 : 0;  // of many rows, one would change again and again
        for (int attempt = 0; attempt < attempts; attempt++) {
            if (!look(rows, count)) continue;
            read(at);
            if (same(count)) return;
        }
        read(copies(rows, count, shape, at));
    }

private:
    static constexpr u64 LONG = 64;
    bool look(const Ids& rows, u64 count);  // false: somebody is changing one of the rows
    template <class I>
    u64 note(const I* rows, u64 count);          // stripes and their words; the owners of any of them
    bool same(u64 count) const {
        std::atomic_thread_fence(std::memory_order_acquire);
        const u64* stripes = table_.stripes();
        u64 different = 0;
        for (u64 index = 0; index < count; index++) different |= load(stripes[at_[index]], std::memory_order_relaxed) ^ words_[index];
        return !different;
    }
    const char* const* copies(const Ids& rows, u64 count, const RowShape& shape, const char* const* at);  // row by row

    Table& table_;
    u64 words_[LONG];
    u32 at_[LONG];                               // stripes of the rows
    std::vector<char> bytes_;
    std::vector<const char*> copied_;
};

}  // namespace osf::tables
