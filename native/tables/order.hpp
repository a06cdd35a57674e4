// A batch's ids in the order of rows, those of one row in the order of the batch.
#pragma once

#include "tables/read.hpp"

namespace osf::tables {

struct Ordered {
    u64 row;
    u32 position, pad;
};

std::vector<Ordered> in_order(const Ids& ids);

}  // namespace osf::tables
