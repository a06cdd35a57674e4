// Whether another host answers, as all calls of this process find it together.
//
// A host that has answered and then does not may only have its keeper replaced, which takes some tenths of a second: it is tried
// again until LOST_MS after it first failed. Then it is lost, and from then on one short try is enough for a call, until one succeeds. A host
// of which neither this process ever heard nor the keeper of its own host lately is not waited for: it may not be there yet, and
// look-ups ask all hosts.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "rpc/calls.hpp"
#include "base/lock.hpp"

namespace osf::rpc {

class Reach {
public:
    // Before all else: `heard_ns` tells when the keeper of the own host last heard from that one.
    void ask_keeper(std::function<u64()> heard_ns) { heard_ns_ = std::move(heard_ns); }
    bool lost() const { return lost_ || !known(); }
    // How long the next try may take.
    int budget_ms() const {
        if (lost_) return std::max(SHORT_MS, std::min(DIAL_MS, int(4 * usual_ns_ / MS)));
        const u64 since = since_, now = now_ns();
        return since && known() ? std::clamp(int(LOST_MS) - int((now - std::min(now, since)) / MS), SHORT_MS, DIAL_MS) : DIAL_MS;
    }
    void good(u64 took_ns) {
        usual_ns_ = took_ns;
        known_ = true;
        since_ = 0;
        lost_ = false;
    }
    // It was not there, or silent, from `since` until now.
    void failed(u64 since) {
        const u64 now = now_ns();
        u64 first = since_;
        if (!first || now - std::min(now, u64(last_)) > FORGET_MS * MS) since_ = first = since;  // what nobody looked at may have been well meanwhile
        last_ = now;
        if (now - std::min(now, first) >= LOST_MS * MS) lost_ = true;
    }

private:
    bool known() const { return known_ || (heard_ns_ && heard_ns_() + LOST_MS * MS > now_ns()); }
    static constexpr u64 MS = 1'000'000, LOST_MS = SILENCE_MS, FORGET_MS = 5000;
    static constexpr int DIAL_MS = 2000, SHORT_MS = 300;
    std::function<u64()> heard_ns_;
    std::atomic<bool> known_{false}, lost_{false};
    std::atomic<u64> since_{0}, last_{0}, usual_ns_{0};
};

}  // namespace osf::rpc
