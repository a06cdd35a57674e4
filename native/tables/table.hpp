// A table of rows in a Space, as one process sees it. Look-ups (tables/read.hpp) and updates (tables/update.hpp) take rows by address
// from a snapshot of the table's parts, and know nothing of how the parts came to be.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "space/space.hpp"
#include "tables/format.hpp"

namespace osf::tables {

// The rows that there were at some moment. They stay where they are as long as the table's object lives.
struct Snapshot {
    struct Part { u64 first; char* rows; char* state; };
    u64 rows = 0;
    std::vector<Part> parts;

    const Part& part_of(u64 row) const {
        u64 at = parts.size() - 1;
        while (parts[at].first > row) at--;
        return parts[at];
    }
};

struct TableStats {
    u64 id, rows, room, dim, row_bytes, state_bytes, bytes, steps, updated_rows, interrupted, read_rows;
    u32 parts;
    RowType row_type;
    Optimizer optimizer;
    Settings settings;
    TableInit init;
};

struct Cold;                                     // tables/cold.hpp

class Table {
public:
    // Hidden from everybody until it is published.
    static std::shared_ptr<Table> make(const std::shared_ptr<Space>& space, const TableShape& shape);
    static std::shared_ptr<Table> open(const std::shared_ptr<Space>& space, std::string_view name);  // null: there is none
    static void discard(const std::shared_ptr<Space>& space, Held head);  // takes its names away; the pin stays the caller's
    static void sweep(const std::shared_ptr<Space>& space);               // tables whose makers died
    Table(std::shared_ptr<Space> space, Held head);                       // takes the pin over
    ~Table();
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;

    void publish(std::string_view name);
    void mend();                                 // what dead writers left half changed
    void grow(u64 more);                         // rows, with what the table has for new ones
    std::shared_ptr<const Snapshot> snapshot();
    TableStats stats();
    std::shared_ptr<Cold> cold();                // null: rows do not leave memory, or each touch brings them back
    void keep_hot(u64 bytes);                    // of rows from flash that are read often, in this process's memory; 0: none
    std::string name() const { return space->name_of(held_); }
    void check_usable() const;
    void need_write() const;

    TableHead& head() const { return *head_; }
    RowShape shape() const;
    u64* stripes() const { return stripes_; }
    u64& stripe(u64 row) const { return stripes_[row & (head_->stripes - 1)]; }
    TableUndo& undo(u32 writer) const { return *reinterpret_cast<TableUndo*>(base_ + head_->undo_at + writer * head_->undo_stride); }
    char* undo_row(u32 writer) const { return reinterpret_cast<char*>(&undo(writer) + 1); }
    char* undo_state(u32 writer) const { return undo_row(writer) + align_up(head_->row_bytes, 8); }

    const std::shared_ptr<Space> space;

private:
    static void before_fork();
    static void after_fork();
    TablePart& part(u32 number) const { return reinterpret_cast<TablePart*>(base_ + head_->parts_at)[number]; }
    u64 room() const;                            // rows that the parts have memory for
    void add_part(u64 rows);
    void fill(u64 from, u64 to);                 // rows that nobody reads yet
    Held make_array(u32 number, u64 rows, bool state);
    char* keep(const Held& array);               // its bytes; of a process that does not notice touches, held in memory

    Held held_;
    char* base_ = nullptr;
    TableHead* head_ = nullptr;
    u64* stripes_ = nullptr;
    std::mutex mutex_;                           // of what follows
    std::shared_ptr<const Snapshot> snapshot_;
    std::vector<Held> arrays_;                   // of the snapshot's parts
    std::vector<u64> in_memory_;                 // pins of a flash tier
    std::shared_ptr<Cold> cold_;
};

}  // namespace osf::tables
