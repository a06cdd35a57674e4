// Whole rows at almost the price of plain ones: a reader of some hundreds of rows asks the writers, not the rows' stripes, what has changed.
//
// A writer says in its undo record which row it is about to change: it arms the record, names the row in `recent` and counts it in
// `changes`; then it changes the row, then it disarms the record. So the rows that changed while a reader read are those that were armed
// when it began, and those that were counted since. A writer that took its record since is noticed by `joined`. Rows that a dead writer
// left half changed stay armed until somebody has put them back.
#pragma once

#include "tables/table.hpp"

namespace osf::tables {

class Watch {
public:
    explicit Watch(Table& table) : table_(table) {}

    bool begin();                                // false: too many writers to ask
    bool end();                                  // false: any row may have changed since
    bool changed() const { return count_ != 0; }
    bool changed(u64 row) const {                // since `begin`, or was being changed then
        if (!(filter_[row / 64 % WORDS] >> (row % 64) & 1)) return false;
        for (u32 at = 0; at < count_; at++)
            if (rows_[at] == row) return true;
        return false;
    }

private:
    static constexpr u32 MOST = 8, WORDS = 16;   // writers; words of the filter
    void note(u64 row) {
        rows_[count_++] = row;
        filter_[row / 64 % WORDS] |= 1ull << (row % 64);
    }

    Table& table_;
    u64 joined_ = 0;
    u32 writers_ = 0, count_ = 0;
    u32 writer_[MOST];
    u64 changes_[MOST];                          // of each of them, when the reader began
    u64 rows_[MOST * (TABLE_RECENT + 1)];
    u64 filter_[WORDS] = {};
};

}  // namespace osf::tables
