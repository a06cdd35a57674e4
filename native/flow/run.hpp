// Tasks in virtual time: computing, and flows that share resources, each begun when those before it are done.
//
// Cut-through: a flow's bytes are on all of its path at once, at the max-min fair rate, after its delay (the latency of the
// path and whatever the protocol adds); rates change when a flow begins or ends or a capacity changes. Whole messages: every
// hop takes in a message, waits for the resource, which serves one message after the other in order of arrival, and
// passes it on after the resource's own latency.
//
// Everything is a function of the input: events at the same time are handled in a fixed order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/base.hpp"

namespace osf::flow {

// A task with a path is a flow, and its work are bytes; one without computes, and its work are seconds.
struct FlowTasks {
    std::span<const double> work, delay, cap;
    std::span<const std::int64_t> path_at;  // tasks + 1
    std::span<const std::int32_t> path;
    std::span<const double> weight;         // empty, or of each hop: how often the flow counts there (flow.hpp)
    std::span<const std::int32_t> stream;   // tasks of a stream run one at a time, in the order in which they become ready; -1: none
    std::span<const std::int32_t> lane;     // flows of a lane are on the wires one at a time, of those that wait the lowest number first; -1: none
    std::span<const std::int64_t> next_at;  // tasks + 1
    std::span<const std::int32_t> next;     // tasks that wait for this one
};

struct FlowChange {
    double time;
    std::int32_t resource;
    double capacity;
};

// From `time` on every task has another path: routers have found out that links are dead, or alive again. Weights are not
// for such runs.
struct FlowPaths {
    double time;
    std::span<const std::int64_t> path_at;  // tasks + 1
    std::span<const std::int32_t> path;
};

struct FlowResult {
    std::vector<double> start, finish;  // when its delay begins, when its last byte is there
    u64 events = 0;                     // moments at which something began or ended
    u64 solves = 0;
};

// `window`: what happens within so many seconds is handled at once, with rates computed anew only after it; 0 is exact.
// Both raise bad_input when tasks wait for one another, or a flow could never end.
FlowResult run_flows(std::vector<double> capacity, const FlowTasks& tasks, std::span<const FlowChange> changes,
                     double window, std::span<const FlowPaths> reroutes = {});
FlowResult run_messages(std::span<const double> capacity, std::span<const double> latency, const FlowTasks& tasks);

}  // namespace osf::flow
