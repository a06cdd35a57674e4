// Changes of rows in place: gradients through an optimizer, or new values.
//
// Rows that come several times in a batch get the sum of their gradients, added in the order of the batch, and change once. Rows are
// changed in the order of their numbers, each with its state, as tables/format.hpp says.
#pragma once

#include "tables/read.hpp"

namespace osf::tables {

struct Update {
    std::shared_ptr<Table> table;
    Ids ids;
    const float* gradients = nullptr;            // table.dim each
    u64 stride = 0;                              // numbers from one to the next
    u64 gradient_count = 0;
    Ids offsets;                                 // none: a gradient for each id; else one for each bag
    u64 bags = 0;
    bool mean = false;                           // a bag's gradient is shared out among its ids
    const float* weights = nullptr;              // of the ids, with bags that are sums
    const std::int64_t* winners = nullptr;       // of bags that are maxima: for each number the position of its id, -1: none
    Settings settings{};
    bool any_number = false;                     // gradients may be infinite or no numbers
};

// Everything is checked before a row changes. A batch without ids is a step, too.
void update_rows(const Update& update, u32 threads);

// Rows as float32 numbers, or (raw) as the bytes that they are; of an id that comes twice, the last. States, if given, change with them.
void write_rows(const std::shared_ptr<Table>& table, const Ids& ids, const char* rows, bool raw, const char* states);

// How many steps there were: Adam's time goes on from here.
void set_steps(Table& table, u64 steps);

void read_states(const std::shared_ptr<Table>& table, const Ids& ids, char* out);

}  // namespace osf::tables
