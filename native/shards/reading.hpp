// One look-up in a table over several hosts.
//
// As in tables/read.cpp, ids become addresses first: in the shard of this host, in a copy that this process keeps, or in memory of the call,
// into which rows of other hosts are fetched, each once. Kernels then pool what is at the addresses. Bags may also be summed where their
// rows are, if that costs less.
#pragma once

#include "shards/kept.hpp"

namespace osf::shards {

class Reading {
public:
    Reading(Sharded& table, const ReadRequest& request, u32 threads);
    bool run();                                  // false: a block has moved

private:
    enum class End { done, again, moved };
    struct Missing {                             // an id that is fetched
        u64 id;
        u32 times;
        u8 host;
    };
    End attempt(bool hold);                      // hold: nothing changes the copies meanwhile
    bool resolve();                              // false: a block has moved
    u32 miss(u64 id, u8 host);
    bool fetch();
    void choose_sums();
    bool fetch_sums();
    void add_sums();
    void pool();
    void keep();                                 // offers what was fetched to the copies

    Sharded& table_;
    const ReadRequest& request_;
    const u32 threads_;
    const std::shared_ptr<const Map> map_;
    const std::shared_ptr<Shard> own_;
    const std::shared_ptr<Sharded::Kept> kept_;
    const TableShape& shape_;
    const u64 row_bytes_;
    const RowShape rows_;
    const u64 count_;

    std::vector<const char*> at_;                // of each id
    static constexpr u32 HERE = ~0u, COPIED = ~1u;
    std::vector<u32> from_;                      // of each id: HERE, COPIED, or which of missing_
    std::vector<Missing> missing_;
    std::vector<u32> index_;                     // of missing_ + 1, by hash, open addressing
    std::vector<char> fetched_;
    std::vector<u64> tags_;
    std::vector<u64> staged_;                    // ids that were found among those asked for early
    u64 moved_ = 0, written_ = 0, copied_ids_ = 0, own_ids_ = 0;

    struct Sums {                                // what one host sums for us
        std::vector<u64> ids;
        std::vector<u32> ends, bags;
        std::vector<float> weights, out;
    };
    std::vector<std::optional<Sums>> sums_;      // by host
};

}  // namespace osf::shards
