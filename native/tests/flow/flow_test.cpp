// Rates and times of flows: known cases, conservation and max-min fairness on random ones, changes, streams, cycles.
#include <cmath>
#include <limits>

#include "tests/check.hpp"
#include "flow/flow.hpp"
#include "flow/run.hpp"

using namespace osf;
using namespace osf::test;

static constexpr double INF = std::numeric_limits<double>::infinity();

static bool near(double a, double b, double part = 1e-9) { return std::abs(a - b) <= part * std::max(std::abs(a), std::abs(b)); }

// Tasks by hand: add() gives the number.
struct Tasks {
    std::vector<double> work, delay, cap, weight;
    std::vector<std::int64_t> path_at{0}, next_at;
    std::vector<std::int32_t> path, stream, lane, next;
    std::vector<std::vector<std::int32_t>> after;

    int add(double amount, std::vector<std::int32_t> way, std::vector<int> waits = {}, double late = 0, int own = -1, double most = INF) {
        const int number = int(work.size());
        work.push_back(amount), delay.push_back(late), cap.push_back(most), stream.push_back(own), lane.push_back(-1);
        path.insert(path.end(), way.begin(), way.end());
        path_at.push_back(std::int64_t(path.size()));
        after.emplace_back();
        for (int task : waits) after[std::size_t(task)].push_back(number);
        return number;
    }
    FlowTasks view() {
        next_at.assign(1, 0), next.clear();
        for (auto& each : after) {
            next.insert(next.end(), each.begin(), each.end());
            next_at.push_back(std::int64_t(next.size()));
        }
        return {work, delay, cap, path_at, path, weight, stream, lane, next_at, next};
    }
    FlowResult run(std::vector<double> capacity, std::vector<FlowChange> changes = {}, double window = 0) {
        const FlowTasks tasks = view();
        return run_flows(std::move(capacity), tasks, changes, window);
    }
};

static void test_two_flows_share_and_the_rest_is_taken() {
    Tasks tasks;
    tasks.add(100, {0});
    tasks.add(100, {0, 1});
    tasks.add(100, {1});
    // Resource 1 gives 2 each, then 0 leaves 8.
    auto result = tasks.run({10, 4});
    CHECK(near(result.finish[0], 12.5));
    CHECK(near(result.finish[1], 50) && near(result.finish[2], 50));
}

static void test_caps_leave_room() {
    Tasks tasks;
    tasks.add(10, {0}, {}, 0, -1, 1);
    tasks.add(90, {0});
    auto result = tasks.run({10});
    CHECK(near(result.finish[0], 10) && near(result.finish[1], 10));
}

static void test_rates_are_max_min_fair_on_random_ways() {
    std::mt19937_64 random(7);
    for (int round = 0; round < 200; round++) {
        const int resources = 1 + int(random() % 12), flows = 1 + int(random() % 30);
        std::vector<double> capacity, cap, rate(flows);
        std::vector<std::int64_t> at{0};
        std::vector<std::int32_t> path;
        std::vector<std::uint32_t> which;
        for (int r = 0; r < resources; r++) capacity.push_back(1 + double(random() % 100));
        for (int f = 0; f < flows; f++) {
            for (int r = 0; r < resources; r++)
                if (random() % 3 == 0) path.push_back(r);
            if (std::int64_t(path.size()) == at.back()) path.push_back(int(random() % resources));
            at.push_back(std::int64_t(path.size()));
            cap.push_back(random() % 4 ? INF : 0.5 + double(random() % 10));
            which.push_back(std::uint32_t(f));
        }
        MaxMin(capacity.size()).solve(capacity, at, path, {}, cap, which, rate);
        std::vector<double> used(resources, 0), most(resources, 0);
        for (int f = 0; f < flows; f++)
            for (auto i = at[f]; i < at[f + 1]; i++) {
                used[path[i]] += rate[f];
                most[path[i]] = std::max(most[path[i]], rate[f]);
            }
        for (int r = 0; r < resources; r++) CHECK(used[r] <= capacity[r] * (1 + 1e-9));
        for (int f = 0; f < flows; f++) {  // at its cap, or the fastest on a full resource
            bool held = rate[f] >= cap[f] * (1 - 1e-9);
            for (auto i = at[f]; i < at[f + 1]; i++)
                held |= used[path[i]] >= capacity[path[i]] * (1 - 1e-9) && rate[f] >= most[path[i]] * (1 - 1e-9);
            CHECK(held);
        }
    }
}

static void test_tasks_wait_and_streams_run_one_at_a_time() {
    Tasks tasks;
    const int first = tasks.add(2, {}, {}, 0, 0);
    const int second = tasks.add(3, {}, {}, 0, 0);
    const int flow = tasks.add(40, {0}, {first}, 1);
    const int last = tasks.add(1, {}, {second, flow});
    auto result = tasks.run({10});
    CHECK(near(result.finish[second], 5));
    CHECK(near(result.start[flow], 2) && near(result.finish[flow], 7));
    CHECK(near(result.finish[last], 8));
}

static void test_capacities_change() {
    Tasks tasks;
    tasks.add(100, {0});
    auto result = tasks.run({10}, {{5, 0, 0}, {8, 0, 25}});
    CHECK(near(result.finish[0], 10));
    try {
        tasks.run({10}, {{5, 0, 0}});
        CHECK(!"a flow over a dead link ended");
    } catch (const Error& error) {
        CHECK(std::string(error.what()).find("resource 0") != std::string::npos);
    }
}

static void test_a_window_errs_by_no_more_than_itself() {
    Tasks tasks;
    std::mt19937_64 random(3);
    for (int f = 0; f < 300; f++) tasks.add(100 + double(random() % 100), {int(random() % 8), 8 + int(random() % 8)});
    std::vector<double> capacity(16, 10);
    auto exact = tasks.run(capacity), batched = tasks.run(capacity, {}, 5);
    CHECK(batched.solves * 3 < exact.solves);
    double last = 0, about = 0;
    for (std::size_t f = 0; f < 300; f++) last = std::max(last, exact.finish[f]), about = std::max(about, batched.finish[f]);
    CHECK(near(last, about, 0.03));
}

static void test_flows_of_a_lane_are_on_the_wires_one_at_a_time() {
    Tasks tasks;
    for (int f = 0; f < 3; f++) tasks.lane[std::size_t(tasks.add(10, {0}, {}, 1))] = 0;
    const int other = tasks.add(10, {0}, {}, 1);
    auto result = tasks.run({10});
    // Half of the resource for the lane while the other flow is there; latencies are not added up.
    CHECK(near(result.finish[0], 3) && near(result.finish[other], 3));
    CHECK(near(result.finish[1], 4) && near(result.finish[2], 5));
}

static void test_messages_are_stored_and_forwarded_in_turn() {
    Tasks tasks;
    tasks.add(10, {0, 1});
    tasks.add(10, {0, 1});
    const FlowTasks made = tasks.view();
    std::vector<double> capacity{10, 10}, latency{0.5, 0.5};
    auto result = run_messages(capacity, latency, made);
    CHECK(near(result.finish[0], 3));  // one second on each link, and both latencies
    CHECK(near(result.finish[1], 4));
}

static void test_tasks_that_wait_for_one_another_are_an_error() {
    Tasks tasks;
    tasks.add(1, {});
    tasks.add(1, {}, {0});
    tasks.after[1].push_back(1);
    try {
        tasks.run({1});
        CHECK(!"a cycle ran");
    } catch (const Error& error) {
        CHECK(std::string(error.what()).find("wait for one another") != std::string::npos);
    }
}

int main() {
    test_two_flows_share_and_the_rest_is_taken();
    test_caps_leave_room();
    test_rates_are_max_min_fair_on_random_ways();
    test_tasks_wait_and_streams_run_one_at_a_time();
    test_capacities_change();
    test_a_window_errs_by_no_more_than_itself();
    test_flows_of_a_lane_are_on_the_wires_one_at_a_time();
    test_messages_are_stored_and_forwarded_in_turn();
    test_tasks_that_wait_for_one_another_are_an_error();
    std::puts("flow: ok");
}
