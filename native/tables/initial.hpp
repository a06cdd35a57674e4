// What new rows hold: zeros, or random numbers that depend on seed, row and column only, so that any number of threads makes the same.
#pragma once

#include "tables/format.hpp"

namespace osf::tables {

// `count` rows from number `first` on, one after the other in memory that is zero.
void fill_rows(const TableInit& init, RowType type, u64 dim, char* rows, u64 first, u64 count);

}  // namespace osf::tables
