// Which task may begin: counts of those it waits for, and streams that run one task at a time. Shared by both ways to run.
#pragma once

#include <deque>
#include <queue>
#include <string>
#include <unordered_map>

#include "flow/run.hpp"

namespace osf::flow {

class FlowOrder {
public:
    FlowOrder(const FlowTasks& tasks, FlowResult& result) : tasks_(tasks), result_(result) {
        const std::size_t count = tasks.work.size();
        result.start.assign(count, 0);
        result.finish.assign(count, 0);
        waits_.assign(count, 0);
        for (auto task : tasks.next) waits_[task]++;
    }

    // Calls begin(task, time) for all that wait for nothing.
    template <class Begin>
    void first(Begin begin) {
        const std::vector<std::int32_t> waits = waits_;  // as they are before any is done
        for (std::size_t task = 0; task < waits.size(); task++)
            if (!waits[task]) ready(std::int32_t(task), 0, begin);
    }

    template <class Begin>
    void finish(std::int32_t task, double time, Begin begin) {
        result_.finish[task] = time;
        done_++;
        const auto stream = tasks_.stream[task];
        if (stream >= 0) {
            Stream& own = streams_[stream];
            own.busy = false;
            if (!own.queue.empty()) {
                const auto next = own.queue.front();
                own.queue.pop_front();
                own.busy = true;
                begun(next, std::max(time, result_.start[next]), begin);
            }
        }
        for (auto at = tasks_.next_at[task]; at < tasks_.next_at[task + 1]; at++) {
            const auto next = tasks_.next[at];
            result_.start[next] = std::max(result_.start[next], time);
            if (--waits_[next] == 0) ready(next, result_.start[next], begin);
        }
    }

    bool flow(std::int32_t task) const { return tasks_.path_at[task] < tasks_.path_at[task + 1]; }

    bool all_done() const { return done_ == waits_.size(); }

    void check_done() const {
        if (done_ == waits_.size()) return;
        std::size_t task = 0;
        while (!waits_[task]) task++;
        throw Error(Code::bad_input, std::to_string(waits_.size() - done_) + " of " + std::to_string(waits_.size()) +
                                         " tasks never begin: they wait for one another, task " + std::to_string(task) +
                                         " among them");
    }

private:
    struct Stream {
        bool busy = false;
        std::deque<std::int32_t> queue;
    };

    template <class Begin>
    void ready(std::int32_t task, double time, Begin& begin) {
        result_.start[task] = time;
        const auto stream = tasks_.stream[task];
        if (stream >= 0) {
            Stream& own = streams_[stream];
            if (own.busy) {
                own.queue.push_back(task);
                return;
            }
            own.busy = true;
        }
        begun(task, time, begin);
    }
    template <class Begin>
    void begun(std::int32_t task, double time, Begin& begin) {
        result_.start[task] = time;
        begin(task, time);
    }

    const FlowTasks& tasks_;
    FlowResult& result_;
    std::vector<std::int32_t> waits_;
    std::unordered_map<std::int32_t, Stream> streams_;
    std::size_t done_ = 0;
};

// Lanes: who is on the wires, and who waits, in order of their numbers.
class FlowLanes {
public:
    explicit FlowLanes(const FlowTasks& tasks) : after_(tasks.work.size(), NOBODY) {
        for (auto lane : tasks.lane)
            if (lane >= std::int32_t(lanes_.size())) lanes_.resize(std::size_t(lane) + 1);
    }
    // True if the lane was free and is the task's now; else it waits.
    bool take(std::int32_t lane, std::int32_t task) {
        Lane& own = lanes_[std::size_t(lane)];
        if (!own.busy) return own.busy = true;
        if (own.first == NOBODY || task > own.last) {
            (own.first == NOBODY ? own.first : after_[std::size_t(own.last)]) = task;
            own.last = task;
            return false;
        }
        std::int32_t* link = &own.first;
        while (*link < task) link = &after_[std::size_t(*link)];
        after_[std::size_t(task)] = *link;
        *link = task;
        return false;
    }
    // The next task, which has the lane now, or NOBODY.
    std::int32_t give(std::int32_t lane) {
        Lane& own = lanes_[std::size_t(lane)];
        const auto next = own.first;
        if (next == NOBODY) own.busy = false;
        else own.first = after_[std::size_t(next)];
        return next;
    }

private:
    static constexpr std::int32_t NOBODY = -1;
    struct Lane {
        bool busy = false;
        std::int32_t first = NOBODY, last = NOBODY;
    };
    std::vector<Lane> lanes_;
    std::vector<std::int32_t> after_;
};

// Events by time, and by age among equal times.
struct FlowTimer {
    double time;
    u64 age;
    std::int32_t task;
    std::int32_t what;  // a hop, or -1: it ends
    bool operator>(const FlowTimer& other) const { return time != other.time ? time > other.time : age > other.age; }
};
using FlowTimers = std::priority_queue<FlowTimer, std::vector<FlowTimer>, std::greater<>>;

}  // namespace osf::flow
