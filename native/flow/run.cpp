#include "flow/run.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "flow/flow.hpp"
#include "flow/order.hpp"
#include "flow/users.hpp"

namespace osf::flow {

namespace {

constexpr double NEVER = std::numeric_limits<double>::infinity();
constexpr std::int32_t ENDS = -1, ARRIVES = 0;
constexpr std::size_t PART = 4;  // of the flows; if more than that many could be affected, all are solved
constexpr double SAME = 1e-12;  // times that differ by less than this part are one event

class FluidRun {
public:
    FluidRun(std::vector<double> capacity, const FlowTasks& tasks, std::span<const FlowChange> changes, double window,
             std::span<const FlowPaths> reroutes)
        : capacity_(std::move(capacity)), tasks_(tasks), changes_(changes), reroutes_(reroutes), window_(window),
          order_(tasks_, result_), solver_(capacity_.size()), users_(capacity_.size(), tasks_) {}

    FlowResult run() {
        auto begin = [this](std::int32_t task, double time) { this->begin(task, time); };
        order_.first(begin);
        while (true) {
            while (!timers_.empty() && timers_.top().time <= now_) take_timer(begin);
            if (stale_) solve();
            const double next = std::min({soonest(), timers_.empty() ? NEVER : timers_.top().time,
                                          change_ < changes_.size() ? changes_[change_].time : NEVER,
                                          reroute_ < reroutes_.size() ? reroutes_[reroute_].time : NEVER});
            if (next == NEVER || order_.all_done()) break;
            step(next, begin);
        }
        if (!active_.empty()) starved();
        order_.check_done();
        return std::move(result_);
    }

private:
    void begin(std::int32_t task, double time) {
        if (order_.flow(task)) {
            const double arrives = time + tasks_.delay[task];
            if (arrives <= now_) return arrive(task);
            timers_.push({arrives, age_++, task, ARRIVES});
        } else {
            timers_.push({time + tasks_.delay[task] + tasks_.work[task], age_++, task, ENDS});
        }
    }

    void arrive(std::int32_t task) {
        const auto lane = tasks_.lane[task];
        if (lane >= 0 && !lanes_.take(lane, task)) return;
        enter(task);
    }

    void enter(std::int32_t task) {
        where_[task] = std::uint32_t(active_.size());
        active_.push_back(std::uint32_t(task));
        left_.push_back(tasks_.work[task]);
        rate_.push_back(0);
        users_.add(std::uint32_t(task));
        touch(std::uint32_t(task));
        settled_ = 0;
    }

    void leave(std::uint32_t task) {
        const auto at = where_[task];
        settled_ = std::min(settled_, rate_[at]);
        where_[active_.back()] = at;
        active_[at] = active_.back(), left_[at] = left_.back(), rate_[at] = rate_.back();
        active_.pop_back(), left_.pop_back(), rate_.pop_back();
        users_.remove(task);
        touch(task);
    }

    void touch(std::uint32_t task) {
        stale_ = true;
        if (touched_.size() > active_.size()) return;  // all will be solved anyway
        touched_.insert(touched_.end(), tasks_.path.begin() + tasks_.path_at[task], tasks_.path.begin() + tasks_.path_at[task + 1]);
    }

    double soonest() const {
        double least = NEVER;
        for (std::size_t i = 0; i < active_.size(); i++)
            if (left_[i] <= 0) return now_;
            else if (rate_[i] > 0) least = std::min(least, left_[i] / rate_[i]);
        return now_ + least;
    }

    template <class Begin>
    void take_timer(Begin& begin) {
        const FlowTimer timer = timers_.top();
        timers_.pop();
        if (timer.what == ENDS) order_.finish(timer.task, timer.time, begin);
        else arrive(timer.task);
    }

    // Everything from `next` to the end of the window, then the clock stands at the last of it.
    template <class Begin>
    void step(double next, Begin& begin) {
        result_.events++;
        const double until = next + std::max(window_, SAME * next);
        double last = next;
        ended_.clear();
        for (std::size_t i = 0; i < active_.size(); i++) {
            const double ends = left_[i] <= 0 ? now_ : rate_[i] > 0 ? now_ + left_[i] / rate_[i] : NEVER;
            if (ends > until) continue;
            ended_.push_back({ends, active_[i]});
            last = std::max(last, ends);
        }
        std::sort(ended_.begin(), ended_.end());
        for (const auto& [time, task] : ended_) leave(task);
        const std::size_t moving = active_.size();
        for (const auto& [time, task] : ended_)
            if (tasks_.lane[task] >= 0)
                if (const auto after = lanes_.give(tasks_.lane[task]); after >= 0) enter(after);
        // What flows that end here set off may happen in the window too; what has entered moves from the next step on.
        std::size_t at = 0;
        const double before = now_;
        while (true) {
            const bool timer = !timers_.empty() && timers_.top().time <= until;
            const bool change = change_ < changes_.size() && changes_[change_].time <= until;
            const double flow_time = at < ended_.size() ? ended_[at].first : NEVER;
            const double timer_time = timer ? timers_.top().time : NEVER;
            if (reroute_ < reroutes_.size() && reroutes_[reroute_].time <= std::min(until, std::min(flow_time, timer_time))) {
                last = std::max(last, reroutes_[reroute_].time);
                reroute(reroutes_[reroute_++]);
            } else if (change && changes_[change_].time <= std::min(flow_time, timer_time)) {
                last = std::max(last, changes_[change_].time);
                capacity_[changes_[change_].resource] = changes_[change_].capacity;
                change_++;
                stale_ = true;
                settled_ = 0;
                touched_.push_back(changes_[change_ - 1].resource);
            } else if (at < ended_.size() && flow_time <= timer_time) {
                const auto [time, task] = ended_[at++];
                order_.finish(std::int32_t(task), time, begin);
            } else if (timer) {
                last = std::max(last, timer_time);
                take_timer(begin);
            } else {
                break;
            }
        }
        for (std::size_t i = 0; i < moving; i++) left_[i] -= rate_[i] * (last - before);
        now_ = last;
    }

    void reroute(const FlowPaths& paths) {
        for (auto task : active_) users_.remove(task);
        tasks_.path_at = paths.path_at, tasks_.path = paths.path;
        users_.repath();
        for (auto task : active_) users_.add(task);
        stale_ = all_ = true;
        settled_ = 0;
    }

    // Only flows that share a resource with what changed, or with such a flow, and so on, can have another rate.
    void solve() {
        if (!all_ && follow()) {
            some_rate_.clear();
            for (auto task : some_) some_rate_.push_back(rate_[where_[task]]);
            solver_.solve(capacity_, tasks_.path_at, tasks_.path, tasks_.weight, tasks_.cap, some_, some_rate_, settled_);
            for (std::size_t i = 0; i < some_.size(); i++) rate_[where_[some_[i]]] = some_rate_[i];
        } else {
            solver_.solve(capacity_, tasks_.path_at, tasks_.path, tasks_.weight, tasks_.cap, active_, rate_, settled_);
        }
        touched_.clear();
        stale_ = all_ = false;
        settled_ = NEVER;
        result_.solves++;
    }

    // Where nearly everything hangs together it is not tried each time.
    bool follow() {
        if (pause_ > 0 && pause_--) return false;
        const bool found = users_.joined(touched_, active_.size() / PART, some_);
        backoff_ = found ? 1 : std::min(2 * backoff_, 64);
        pause_ = found ? 0 : backoff_;
        return found;
    }

    [[noreturn]] void starved() const {
        const auto task = active_[0];
        auto at = tasks_.path_at[task];
        while (at + 1 < tasks_.path_at[task + 1] && capacity_[tasks_.path[at]] > 0) at++;
        throw Error(Code::bad_input, "task " + std::to_string(task) + " never ends: resource " +
                                         std::to_string(tasks_.path[at]) + " on its path has no capacity and no change is to come");
    }

    std::vector<double> capacity_;
    FlowTasks tasks_;  // its paths may become others
    std::span<const FlowChange> changes_;
    std::span<const FlowPaths> reroutes_;
    double window_;
    FlowResult result_;
    FlowOrder order_;
    MaxMin solver_;
    FlowTimers timers_;
    FlowUsers users_;
    FlowLanes lanes_{tasks_};
    std::vector<std::uint32_t> active_, some_;
    std::vector<std::uint32_t> where_ = std::vector<std::uint32_t>(tasks_.work.size());  // in active_
    std::vector<double> left_, rate_, some_rate_;
    std::vector<std::int32_t> touched_;  // resources whose flows changed since the last solve
    std::vector<std::pair<double, std::uint32_t>> ended_;
    std::size_t change_ = 0, reroute_ = 0;
    double now_ = 0;
    u64 age_ = 0;
    int pause_ = 0, backoff_ = 1;
    bool stale_ = false, all_ = false;  // rates are to be computed anew; of all flows
    double settled_ = 0;  // the slowest of the flows that ended since the last solve; 0 if anything else changed
};

}  // namespace

FlowResult run_flows(std::vector<double> capacity, const FlowTasks& tasks, std::span<const FlowChange> changes,
                     double window, std::span<const FlowPaths> reroutes) {
    return FluidRun(std::move(capacity), tasks, changes, window, reroutes).run();
}

FlowResult run_messages(std::span<const double> capacity, std::span<const double> latency, const FlowTasks& tasks) {
    FlowResult result;
    FlowOrder order(tasks, result);
    FlowTimers timers;
    std::vector<double> free(capacity.size(), 0);
    u64 age = 0;
    auto begin = [&](std::int32_t task, double time) {
        if (order.flow(task)) timers.push({time + tasks.delay[task], age++, task, 0});
        else timers.push({time + tasks.delay[task] + tasks.work[task], age++, task, ENDS});
    };
    order.first(begin);
    while (!timers.empty()) {
        const FlowTimer timer = timers.top();
        timers.pop();
        result.events++;
        if (timer.what == ENDS) {
            order.finish(timer.task, timer.time, begin);
            continue;
        }
        // At a hop: the resource serves messages as they arrive.
        const auto hop = tasks.path_at[timer.task] + timer.what;
        const auto resource = tasks.path[hop];
        const double rate = std::min(capacity[resource], tasks.cap[timer.task]);
        if (!(rate > 0))
            throw Error(Code::bad_input, "task " + std::to_string(timer.task) + " never ends: resource " +
                                             std::to_string(resource) + " on its path has no capacity");
        const double sent = std::max(timer.time, free[resource]) + tasks.work[timer.task] / rate;
        free[resource] = sent;
        const bool last = hop + 1 == tasks.path_at[timer.task + 1];
        timers.push({sent + latency[resource], age++, timer.task, last ? ENDS : timer.what + 1});
    }
    order.check_done();
    return result;
}

}  // namespace osf::flow
