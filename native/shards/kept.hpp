// The copies of one table in this process, and the threads that keep them: one refreshes what has changed where it lives, one fetches what
// was asked for early.
#pragma once

#include "shards/sharded.hpp"

namespace osf::shards {

struct Sharded::Kept {
    Kept(Sharded& table, u64 rows, u64 row_bytes, double fresh_s);
    void begin();
    void end();                                  // waits for the threads; in a forked child there are none

    void ask_early(std::vector<u64> ids);
    bool wait_for(std::span<const u64> ids);     // until none of them is on its way; whether one was
    void forget(std::span<const u64> ids);       // rows that this process has changed

    Copies copies;
    std::atomic<u64> written{0};                 // how often this process changed rows: what was fetched before may be old
    std::atomic<u64> refreshed{0}, failed{0};

private:
    void refresh_for_ever();
    void refresh_host(u64 number);
    void drop_host(u64 number);
    void fetch_for_ever();
    void fetch_early(const std::vector<u64>& ids);
    bool nap(std::unique_lock<std::mutex>& lock, u64 ns);  // false: it is over

    Sharded& table_;
    const u64 row_bytes_, fresh_ns_;
    const u64 fork_;
    std::vector<u64> checked_;                   // of each host: when its copies were last known to be good
    std::vector<u64> moves_;
    std::mutex mutex_;                           // of what follows
    std::condition_variable changed_;
    bool over_ = false;
    std::deque<std::vector<u64>> queue_;
    std::unordered_map<u64, u32> coming_;        // ids on their way
    std::thread refresher_, fetcher_;
};

}  // namespace osf::shards
