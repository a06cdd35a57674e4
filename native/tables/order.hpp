// A batch's gradients by rows: ids in the order of rows, those of one row in the order of the batch.
#pragma once

#include "tables/update.hpp"

namespace osf::tables {

struct Ordered {
    u64 row;
    u32 position, pad;
};

std::vector<Ordered> in_order(const Ids& ids);

// For each row that changes the sum of its gradients. It refers to the update, but not to its table.
class RowGradients {
public:
    RowGradients(const Update& update, u64 dim, std::string title);
    u64 rows() const { return firsts_.size() - 1; }
    u64 row(u64 number) const { return order_[firsts_[number]].row; }
    u64 position(u64 number) const { return order_[firsts_[number]].position; }  // of its first id in the batch
    void sum(u64 number, float* out) const;
    void check() const;                          // throws if a gradient or a sum is infinite or no number

private:
    void share_out();                            // bags' gradients among their ids
    void keep_winners();
    const float* gradient(u64 at) const { return reinterpret_cast<const float*>(at_[at]); }

    const Update& update_;
    const u64 dim_;
    const std::string title_;                    // of the table, for errors
    std::vector<Ordered> order_;
    std::vector<u64> firsts_;                    // of each row's ids, in order_; then their number
    std::vector<u32> bag_of_;                    // of each id of the batch
    std::vector<const char*> at_;                // where the gradient of each id of order_ is, and some more, which may be asked for
    std::vector<float> factors_, weights_;       // of each id of the batch; of order_. Empty: all 1
};

}  // namespace osf::tables
