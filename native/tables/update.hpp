// Changes of rows in place: gradients through an optimizer, or new values.
//
// Rows that come several times in a batch get the sum of their gradients, added in the order of the batch, and change once. Rows are
// changed in the order of their numbers, each with its state, as tables/format.hpp says.
#pragma once

#include <functional>

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

// Asked with the stripe of a row held, by the position of its id. Threads may ask at once.
struct Guard {
    std::function<bool(u64 position)> may;       // false leaves the row as it is
    std::function<void(u64 position)> done;      // it has changed
};

// Throws if gradients or weights are infinite or no numbers, and may not be; otherwise no product of the two is larger than this.
double check_finite(const Update& update, u64 dim, const std::string& title);

enum class Tick : u8 { always, never };         // whether a batch is a step of the optimizer; one without ids is, too

// Everything is checked before a row changes.
void update_rows(const Update& update, u32 threads, const Guard& guard = {}, Tick tick = Tick::always);

// The rows of a batch in their order, each with the sum of its gradients; checked as update_rows does, with a table of this title.
struct Summed {
    std::vector<u64> rows;
    std::vector<float> gradients;
};
Summed sum_gradients(const Update& update, u64 dim, const std::string& title);

// Rows as float32 numbers, or (raw) as the bytes that they are; of an id that comes twice, the last. States, if given, change with them.
void write_rows(const std::shared_ptr<Table>& table, const Ids& ids, const char* rows, bool raw, const char* states, const Guard& guard = {});

// How many steps there were: Adam's time goes on from here.
void set_steps(Table& table, u64 steps);

void read_states(const std::shared_ptr<Table>& table, const Ids& ids, char* out);

}  // namespace osf::tables
