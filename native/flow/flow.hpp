// Who gets how much of what is shared: max-min fair rates of flows over resources with capacities.
//
// A link, a port of a switch and a memory are all resources. A flow takes its rate from every resource of its path at
// once, and no more than its own cap. Max-min fair: no flow can be faster without taking from one that is not faster than
// it. Rates come from the parallel form of progressive filling: in each round a resource is frozen, with all its flows,
// when its fair share is the smallest on the path of every one of them. All such resources are frozen in the same round,
// so rounds are few (the depth of who waits for whom, not the number of resources).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/rooms.hpp"

namespace osf::flow {

class MaxMin {
public:
    explicit MaxMin(std::size_t resources);

    // rate[i] of flow flows[i], whose path is path[path_at[f]] ... path[path_at[f + 1] - 1] and its cap caps[f].
    // Paths are not empty and name a resource once. Flows whose rate[i] is below `settled` keep it: when flows have ended
    // and nothing else has changed, that is right for all that were slower than the slowest of those, since filling up
    // to that rate goes as it went before. `weight`, empty or as long as `path`, is how often a flow's rate counts at each
    // resource of its path: a flow that stands for several equal ones counts there as often as they are.
    void solve(std::span<const double> capacity, std::span<const std::int64_t> path_at, std::span<const std::int32_t> path,
               std::span<const double> weight, std::span<const double> caps, std::span<const std::uint32_t> flows,
               std::span<double> rate, double settled = 0);

private:
    template <bool weighted>
    void fill(std::span<const double> capacity, std::span<const std::int64_t> path_at, std::span<const std::int32_t> path,
              std::span<const double> weight, std::span<const double> caps, std::span<const std::uint32_t> flows,
              std::span<double> rate, double settled);

    struct Shared {
        double share = 0;   // of each flow that is not frozen
        double left = 0;    // capacity that frozen flows leave
        std::uint32_t flows = 0;
        double weight = 0;   // of those flows
        bool tight = false;  // its share is the smallest for every flow on it
        bool open = false;   // listed in open_
    };
    std::vector<Shared> shared_;
    std::vector<std::int32_t> open_;      // resources with flows that are not frozen
    struct Waiting {
        std::uint32_t position;  // in `flows`
        std::uint32_t hops;
        const std::int32_t* path;
        const double* weight;
        double cap;
        double least;  // the smallest share on the path, or the cap
    };
    std::vector<Waiting> waiting_;
};

}  // namespace osf::flow
