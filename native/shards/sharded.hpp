// A table over several hosts, as one process sees it: which host has which block, look-ups, changes, and copies of rows of other hosts.
//
// Nothing here is shared with other processes. A map that is out of date costs a second attempt: the host that is asked for rows which it
// does not have any more says so.
#pragma once

#include <condition_variable>
#include <thread>
#include <unordered_map>

#include "shards/calls.hpp"
#include "shards/copies.hpp"

namespace osf::shards {

constexpr u8 NOWHERE = 255;

struct Map {
    ShardSeen seen{};                            // of some shard; rows: the most that one of them knows
    std::vector<u8> host;                        // of each block
    std::vector<u32> reads;                      // of each block, where it is
    std::vector<std::vector<u32>> places;        // of each host: what it tells; empty: it has no shard
    std::vector<ShardSeen> shards;               // likewise
    std::vector<std::string> silent;             // hosts that did not answer
    u64 rows() const { return seen.spec.shape.rows; }
    u32 shift() const { return seen.spec.block_shift; }
};

struct ShardedCounts {
    u64 own, copied, fetched, waited, at_owner;  // ids that were looked up: here, from a copy, elsewhere; waited: of these, for a prefetch
    u64 hot, staged, refreshed, prefetch_failed;
};

// What a way to bring rows costs, in ns a byte that it moves: the last ones count most.
struct Cost {
    std::atomic<double> ns = 0;
    void measured(u64 took_ns, u64 bytes) {
        const double now = double(took_ns) / double(std::max<u64>(bytes, 1)), before = ns;
        ns = before ? before + 0.25 * (now - before) : now;
    }
};

class Sharded : public std::enable_shared_from_this<Sharded> {
public:
    // Remotes by number; none for this host. `owner_sums`: bags may be summed where their rows are.
    Sharded(std::shared_ptr<Space> space, u64 id, std::vector<std::shared_ptr<Remote>> hosts, std::string title, bool owner_sums);
    ~Sharded();
    Sharded(const Sharded&) = delete;
    Sharded& operator=(const Sharded&) = delete;

    void refresh();                              // asks all hosts where blocks are
    std::shared_ptr<const Map> map();
    // False: a block has moved; refresh and try again. Nothing is promised of `out` then.
    bool read(const ReadRequest& request, u32 threads);
    bool states(std::span<const u64> ids, char* out);
    void check(const Ids& ids);                  // OutOfRange
    void copy_block(u32 block, u32 to);          // rows and states, to where the block arrives; it does not change meanwhile

    void keep_copies(u64 rows, double fresh_s);  // 0: none. Each is at most so old, and about half of it as a rule
    void prefetch(const Ids& ids);
    ShardedCounts counts();

    const std::shared_ptr<Space> space;
    const u64 id;
    const std::string title;

private:
    friend class Reading;
    friend class Change;
    struct Kept;                                 // copies, and the threads that keep them

    std::shared_ptr<Kept> kept();                // null: there are none
    std::shared_ptr<Shard> own();                // null: this host has no shard
    std::string where(u64 block, const Map& map) const;
    // Rows into `out`, `stride` apart, and their tags; false if one has moved.
    void fetch(const Map& map, std::span<const u64> ids, std::span<const u8> hosts, bool states, u64 stride, char* out, u64* tags);

    const std::vector<std::shared_ptr<Remote>> hosts_;
    const bool owner_sums_;
    std::mutex mutex_;                           // of what follows
    std::shared_ptr<const Map> map_;
    std::shared_ptr<Shard> own_;
    std::shared_ptr<Kept> kept_;
    u64 fork_;
    Cost rows_cost_, sums_cost_;
    std::atomic<u64> batches_{0}, own_ids_{0}, copied_{0}, fetched_{0}, waited_{0}, at_owner_{0};
};

// A change that is made bit by bit until every row has got it: rows that move are tried again. One thread.
class Change {
public:
    Change(std::shared_ptr<Sharded> table, ChangeKind kind, Settings settings, std::vector<u64> rows, std::vector<char> given, std::vector<char> states);
    bool apply(u32 threads);                     // true: all rows have changed; else refresh the map and apply again
    u64 left() const { return left_.size(); }

private:
    const std::shared_ptr<Sharded> table_;
    ChangeAsked asked_{};
    const std::vector<u64> rows_;
    const std::vector<char> given_, states_;
    u64 width_, state_width_;
    std::vector<u32> left_;
    bool first_ = true;
};

}  // namespace osf::shards
