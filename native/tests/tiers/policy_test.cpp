// The demotion policy: what it may name, that it always comes to an end, what a scan may do, and how often it is right compared
// with LRU, which sees every use, and with MIN, which knows the future.
#include <algorithm>
#include <cmath>
#include <queue>
#include <set>
#include <utility>

#include "tests/check.hpp"
#include "tiers/replay.hpp"

using namespace osf;
using namespace osf::test;
using Choice = TierPolicy::Choice;
using Trace = std::vector<u32>;

// What is true of the units, kept beside the policy in plain sets.
struct Model {
    u64 units, capacity;
    TierPolicy policy;
    std::set<u32> inside, named, refused;

    Model(u64 all, u64 room) : units(all), capacity(room), policy(all, room) {}

    void fill(u32 unit, bool wanted) {
        CHECK(inside.size() < capacity && inside.insert(unit).second);
        policy.filled(unit, wanted);
    }
    void leave(u32 unit) {
        CHECK(inside.erase(unit) == 1);
        named.erase(unit);
        refused.erase(unit);
        policy.left(unit);
    }
    // The next unit to be demoted: marked as named.
    bool choose(u32& unit) {
        for (u64 calls = 0;; calls++) {
            CHECK(calls <= 4);
            const Choice choice = policy.next();
            if (choice.what == Choice::none) {
                CHECK(std::includes(refused.begin(), refused.end(), inside.begin(), inside.end()));
                refused.clear();
                return false;
            }
            unit = choice.unit;
            CHECK(inside.count(unit));
            if (choice.what == Choice::arm) {
                CHECK(!named.count(unit));
                continue;
            }
            if (named.count(unit))  // only where there is no other
                for (u32 other : inside) CHECK(named.count(other) || refused.count(other));
            named.insert(unit);
            refused.erase(unit);
            return true;
        }
    }
    void make_room() {
        u32 unit = 0;
        while (inside.size() >= capacity)
            if (choose(unit)) leave(unit);
    }
    void use(u32 unit) {
        if (inside.count(unit)) {
            policy.touched(unit);
            named.erase(unit);
        } else {
            make_room();
            fill(unit, true);
        }
    }
};

static void random_operations_keep_the_laws() {
    for (u64 seed = 1; seed <= 60; seed++) {
        std::mt19937_64 random(seed);
        const u64 capacity = 1 + random() % 40, units = capacity + random() % 80;
        test::context = "seed " + std::to_string(seed);
        Model model(units, capacity);
        for (int at = 0; at < 3000; at++) {
            const u32 unit = u32(random() % units);
            u32 chosen = 0;
            switch (random() % 8) {
                case 0: case 1: case 2: model.use(unit); break;
                case 3:
                    if (!model.inside.count(unit) && model.inside.size() < capacity) model.fill(unit, false);
                    break;
                case 4:
                    if (random() % 4 == 0 && model.inside.count(unit)) model.leave(unit);
                    break;
                case 5: model.choose(chosen); break;
                case 6:
                    if (model.choose(chosen)) model.leave(chosen);
                    break;
                case 7:
                    if (!model.choose(chosen)) break;
                    model.policy.kept(chosen);
                    model.named.erase(chosen);
                    model.refused.insert(chosen);
                    break;
            }
            CHECK(model.policy.in_memory() == model.inside.size());
            model.policy.check();
        }
    }
}

static void when_all_are_kept_one_round_ends_with_none() {
    Model model(100, 50);
    u32 unit = 0;
    CHECK(model.policy.next().what == Choice::none);
    for (u32 at = 0; at < 50; at++) model.fill(at, at % 5 != 0);
    for (int round = 0; round < 3; round++) {
        std::set<u32> asked;
        while (model.choose(unit)) {
            CHECK(asked.insert(unit).second);
            model.policy.kept(unit);
            model.named.erase(unit);
            model.refused.insert(unit);
        }
        CHECK(asked.size() == 50);
    }
    while (!model.inside.empty())
        if (model.choose(unit)) model.leave(unit);
    CHECK(model.policy.next().what == Choice::none);
}

static void units_read_ahead_and_never_touched_leave_first() {
    Model model(4000, 800);
    for (u32 at = 0; at < 500; at++) model.fill(at, true);
    for (u32 at = 500; at < 800; at++) model.fill(at, false);
    for (u32 at = 700; at < 800; at++) model.policy.touched(at);
    u32 unit = 0;
    for (u32 at = 500; at < 600; at++) {
        CHECK(model.choose(unit) && unit == at);
        model.leave(unit);
    }
    // The rest have their time, and go before any other when it is over.
    for (u32 at = 1000; at < 1250; at++) model.use(at);
    for (u32 at = 600; at < 700; at++) CHECK(!model.inside.count(at));
    for (u32 at = 700; at < 800; at++) CHECK(model.inside.count(at));
}

static void a_scan_leaves_what_is_hot() {
    const u32 capacity = 1000, hot = 500;
    TierPolicy policy(100000, capacity);
    std::vector<bool> inside(100000), armed(100000);
    u64 missed = 0, wanted = 0;
    auto use = [&](u32 unit) {
        if (inside[unit]) {
            if (armed[unit]) policy.touched(unit);
            armed[unit] = false;
            return;
        }
        while (policy.in_memory() >= capacity) {
            const Choice choice = policy.next();
            CHECK(choice.what != Choice::none);
            armed[choice.unit] = choice.what == Choice::arm;
            if (choice.what == Choice::arm) continue;
            inside[choice.unit] = false;
            policy.left(choice.unit);
        }
        policy.filled(unit, true);
        policy.touched(unit);  // more of the use that brought it
        inside[unit] = true;
    };
    for (u32 scanned = 0; scanned < 90000; scanned++) {
        if (scanned % 2 == 0) {  // each hot unit once for every 1,000 scanned: LRU would lose all of them
            const u32 unit = scanned / 2 % hot;
            if (scanned > 10000) {
                wanted++;
                missed += !inside[unit];
            }
            use(unit);
        }
        use(1000 + scanned);
    }
    test::context = std::to_string(missed) + " of " + std::to_string(wanted);
    CHECK(wanted && double(missed) / double(wanted) < 0.02);
}

static void a_touch_right_after_coming_is_no_second_use() {
    std::mt19937_64 random(7);
    TierPolicy plain(5000, 1000), twice(5000, 1000);
    std::vector<bool> inside(5000);
    for (int at = 0; at < 50000; at++) {
        const u32 unit = u32(random() % 5000);
        if (inside[unit]) continue;
        while (plain.in_memory() >= 1000) {
            const Choice one = plain.next(), other = twice.next();
            CHECK(one.what == other.what && one.unit == other.unit);
            if (one.what != Choice::demote) continue;
            plain.left(one.unit);
            twice.left(one.unit);
            inside[one.unit] = false;
        }
        plain.filled(unit, true);
        twice.filled(unit, true);
        twice.touched(unit);
        inside[unit] = true;
    }
}

static double lru(u64 units, u64 capacity, const Trace& trace) {
    std::vector<u64> last(units, 0);
    std::set<std::pair<u64, u32>> order;
    u64 hits = 0, now = 0;
    for (u32 unit : trace) {
        hits += order.erase({last[unit], unit});
        if (order.size() >= capacity) order.erase(order.begin());
        order.insert({last[unit] = ++now, unit});
    }
    return double(hits) / double(trace.size());
}

static double min(u64 units, u64 capacity, const Trace& trace) {
    std::vector<u64> upcoming(units, trace.size()), following(trace.size()), next_use(units, 0);
    for (u64 at = trace.size(); at-- > 0;) following[at] = std::exchange(upcoming[trace[at]], at);
    std::priority_queue<std::pair<u64, u32>> furthest;
    std::vector<bool> inside(units);
    u64 hits = 0, size = 0;
    for (u64 at = 0; at < trace.size(); at++) {
        const u32 unit = trace[at];
        hits += inside[unit];
        if (!inside[unit] && size++ >= capacity) {
            while (!inside[furthest.top().second] || next_use[furthest.top().second] != furthest.top().first) furthest.pop();
            inside[furthest.top().second] = false;
            size--;
        }
        inside[unit] = true;
        furthest.push({next_use[unit] = following[at], unit});
    }
    return double(hits) / double(trace.size());
}

static std::vector<double> zipf_weights(u64 units) {
    std::vector<double> sums(units);
    double sum = 0;
    for (u64 rank = 0; rank < units; rank++) sums[rank] = sum += 1.0 / double(rank + 1);
    return sums;
}

// Zipf(1.0); of each `scanned + used` uses, `scanned` go on with a scan over the three quarters that are used least.
static Trace zipf_and_scans(u64 units, u64 length, u64 used, u64 scanned, u64 seed) {
    const std::vector<double> sums = zipf_weights(units);
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> points(0, sums.back());
    Trace trace;
    for (u64 scan = 0; trace.size() < length;) {
        for (u64 at = 0; at < used; at++)
            trace.push_back(u32(std::lower_bound(sums.begin(), sums.end(), points(random)) - sums.begin()));
        for (u64 at = 0; at < scanned; at++) trace.push_back(u32(units / 4 + scan++ % (units - units / 4)));
    }
    return trace;
}

// How much of the way from LRU to MIN it goes at least, and how much of the budget of faults it may use.
static void hit_rate_is_at_least(const char* what, u64 units, u64 capacity, const Trace& trace, double share, double faults) {
    const TierReplay ours = replay_tier_policy(units, capacity, trace);
    const double rate = double(ours.hits) / double(trace.size()), low = lru(units, capacity, trace), high = min(units, capacity, trace);
    test::context = std::string(what) + ": " + std::to_string(rate) + ", LRU " + std::to_string(low) + ", MIN " + std::to_string(high) +
                    ", faults a miss " + std::to_string(double(ours.armed_touches) / double(ours.misses));
    CHECK(low <= high && rate <= high);
    CHECK(rate >= low + share * (high - low));
    CHECK(double(ours.armed_touches) <= faults * double(ours.misses) + double(capacity) / 10 + 1);
}

static void what_fits_is_never_armed() {
    Trace trace;
    for (u32 at = 0; at < 100000; at++) trace.push_back(at % 4000);
    const TierReplay replay = replay_tier_policy(16384, 4096, trace);
    CHECK(replay.misses == 4000 && replay.armed == 0 && replay.armed_touches == 0);
}

int main() {
    random_operations_keep_the_laws();
    when_all_are_kept_one_round_ends_with_none();
    units_read_ahead_and_never_touched_leave_first();
    a_scan_leaves_what_is_hot();
    a_touch_right_after_coming_is_no_second_use();
    what_fits_is_never_armed();
    const u64 units = 16384, capacity = units / 4;
    hit_rate_is_at_least("zipf", units, capacity, zipf_and_scans(units, 300000, 1000, 0, 1), 0.18, 0.3);
    hit_rate_is_at_least("scan", units, capacity, zipf_and_scans(units, 300000, 3072, 2048, 2), 0.28, 0.3);
    Trace loop;
    for (u32 at = 0; at < 300000; at++) loop.push_back(u32(at % (capacity + capacity / 10)));
    hit_rate_is_at_least("loop", units, capacity, loop, 0.7, 0.3);
    return 0;
}
