// Who is on which resource now, so that a change can be followed to all flows that it may affect, and to no others.
#pragma once

#include <vector>

#include "flow/run.hpp"

namespace osf::flow {

class FlowUsers {
public:
    FlowUsers(std::size_t resources, const FlowTasks& tasks)
        : tasks_(tasks), on_(resources), slot_(tasks.path.size()), seen_(resources, 0), met_(tasks.work.size(), 0) {}

    void add(u32 task) {
        for (auto at = tasks_.path_at[task]; at < tasks_.path_at[task + 1]; at++) {
            auto& users = on_[tasks_.path[at]];
            slot_[at] = u32(users.size());
            users.push_back({task, at});
        }
    }

    void remove(u32 task) {
        for (auto at = tasks_.path_at[task]; at < tasks_.path_at[task + 1]; at++) {
            auto& users = on_[tasks_.path[at]];
            users[slot_[at]] = users.back();
            slot_[users.back().at] = slot_[at];
            users.pop_back();
        }
    }

    // The tasks have other paths now; nobody is on any resource.
    void repath() { slot_.assign(tasks_.path.size(), 0); }

    // All flows that share a resource with `from`, with such flows, and so on; false if they are more than `most`.
    bool joined(const std::vector<std::int32_t>& from, std::size_t most, std::vector<u32>& flows) {
        flows.clear();
        if (from.size() > most) return false;
        round_++;
        open_.clear();
        for (auto resource : from) see(resource);
        while (!open_.empty()) {
            const auto resource = open_.back();
            open_.pop_back();
            for (const Use& use : on_[resource]) {
                if (met_[use.task] == round_) continue;
                met_[use.task] = round_;
                if (flows.size() == most) return false;
                flows.push_back(use.task);
                for (auto at = tasks_.path_at[use.task]; at < tasks_.path_at[use.task + 1]; at++) see(tasks_.path[at]);
            }
        }
        return true;
    }

private:
    struct Use {
        u32 task;
        std::int64_t at;  // in the paths
    };
    void see(std::int32_t resource) {
        if (seen_[resource] == round_) return;
        seen_[resource] = round_;
        open_.push_back(resource);
    }

    const FlowTasks& tasks_;
    std::vector<std::vector<Use>> on_;
    std::vector<u32> slot_;  // of each hop, among the users of its resource
    std::vector<u64> seen_, met_;
    std::vector<std::int32_t> open_;
    u64 round_ = 0;
};

}  // namespace osf::flow
