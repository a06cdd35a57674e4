// Look-ups and bags, of one table or of many at once.
//
// A request goes through two steps. First ids become addresses of rows, some hundreds at a time; then kernels pool what is at the addresses
// (simd/kernels.hpp), and ask for rows some places ahead of the one that they read. Only the first step knows where rows are.
#pragma once

#include <span>

#include "tables/table.hpp"

namespace osf::tables {

struct Ids {                                     // int32 or int64, of the caller's
    const void* at = nullptr;
    bool wide = true;
    u64 count = 0;

    u64 operator[](u64 index) const {
        return wide ? u64(static_cast<const std::int64_t*>(at)[index]) : u64(std::int64_t(static_cast<const std::int32_t*>(at)[index]));
    }
    u64 largest() const;                         // as an unsigned number
    std::vector<std::int64_t> copy() const;      // that the caller's other threads cannot change
    Ids from(u64 index) const { return {static_cast<const char*>(at) + index * (wide ? 8 : 4), wide, count - index}; }
};

class Keys;                                      // tables/keys.hpp

struct ReadRequest {
    std::shared_ptr<Table> table;
    Ids ids;                                     // of a table with dynamic ids: keys
    Ids offsets;                                 // where each bag begins; none: each has `length` ids
    u64 bags = 0, length = 1;
    Pooling pooling = Pooling::sum;
    const float* weights = nullptr;              // one for each id
    char* out = nullptr;
    u64 out_stride = 0;                          // bytes from one bag's result to the next one's
    bool raw = false;                            // bags of one row: its bytes as they are
    bool consistent = false;                     // each row as some change left it, never half of one
    std::string title;                           // of the table, for errors
    std::int64_t* winners = nullptr;             // of maxima: for each number the position of its id, -1: none
    std::shared_ptr<Keys> keys;                  // null: ids are rows

    u64 begin(u64 bag) const { return offsets.at ? offsets[bag] : bag * length; }
    u64 end(u64 bag) const { return offsets.at ? (bag + 1 < bags ? offsets[bag + 1] : ids.count) : (bag + 1) * length; }
};

// All requests are checked before anything is written. Threads as in run_pieces; 0: one where there is little to read.
void read_rows(std::span<const ReadRequest> requests, u32 threads);

// Asks for rows, so that the processor's caches have them soon, and returns at once.
void prefetch_rows(Table& table, const Ids& ids);

// Throws unless they begin with 0, do not fall and do not go beyond so many ids.
void check_offsets(const Ids& offsets, u64 bags, u64 ids, const std::string& title);

// Checks ids and throws OutOfRange; the table's rows as of now.
std::shared_ptr<const Snapshot> checked(Table& table, const Ids& ids, const std::string& title);

}  // namespace osf::tables
