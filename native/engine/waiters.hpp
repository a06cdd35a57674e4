// Who waits for which unit, and which units came to rest since the last look. The mover says what became of a unit, and need not know
// what is done about it: the queue looks (Queue::wake) before anybody else can have the mutex, or another unit is decided on.
//
// With the engine's mutex, all of it.
#pragma once

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tiers/client.hpp"

namespace osf::engine {

struct Request;                              // engine/queue.hpp

struct Waiter {
    Request* request;                        // null: a touch
    Want want;                               // of the request
    u32 client;
    bool write;
    u64 since_ns;
    u32 tries = 0;
};

class Waiters {
public:
    struct Rested {
        u32 unit;
        bool gone;                           // its bytes are not in memory, and cannot be
        std::string error;                   // why it is not where it should be; empty: nothing went wrong
    };

    bool any(u32 unit) const { return waiting_.count(unit) > 0; }
    bool need_memory(u32 unit) const {       // a touch or a pin: it is not to leave now
        auto found = waiting_.find(unit);
        return found != waiting_.end() && std::ranges::any_of(found->second, [](const Waiter& one) { return !one.request || one.want == Want::pin; });
    }
    void add(u32 unit, const Waiter& waiter) { waiting_[unit].push_back(waiter); }
    std::vector<Waiter> take(u32 unit) {
        auto found = waiting_.find(unit);
        if (found == waiting_.end()) return {};
        std::vector<Waiter> waiting = std::move(found->second);
        waiting_.erase(found);
        return waiting;
    }

    // It is where it is, for now: who waits for it goes on.
    void rested(u32 unit) {
        if (any(unit)) rested_.push_back({unit, false, {}});
    }
    void failed(u32 unit, const std::string& why, bool gone) {
        if (any(unit)) rested_.push_back({unit, gone, why});
    }
    std::vector<Rested>& news() { return rested_; }

private:
    std::unordered_map<u32, std::vector<Waiter>> waiting_;
    std::vector<Rested> rested_;
};

}  // namespace osf::engine
