#include "flow/flow.hpp"

#include <algorithm>

namespace osf::flow {

// Shares that were computed in another order differ in their last bits; closer than this they are equal.
static constexpr double NEAR = 1 - 1e-12;

MaxMin::MaxMin(std::size_t resources) : shared_(resources) {}

void MaxMin::solve(std::span<const double> capacity, std::span<const std::int64_t> path_at,
                   std::span<const std::int32_t> path, std::span<const double> weight, std::span<const double> caps,
                   std::span<const std::uint32_t> flows, std::span<double> rate, double settled) {
    if (weight.empty()) fill<false>(capacity, path_at, path, weight, caps, flows, rate, settled);
    else fill<true>(capacity, path_at, path, weight, caps, flows, rate, settled);
}

template <bool weighted>
void MaxMin::fill(std::span<const double> capacity, std::span<const std::int64_t> path_at,
                  std::span<const std::int32_t> path, std::span<const double> weight, std::span<const double> caps,
                  std::span<const std::uint32_t> flows, std::span<double> rate, double settled) {
    auto times = [](const double* weights, std::uint32_t hop) { return weighted ? weights[hop] : 1.0; };
    open_.clear();
    waiting_.clear();
    settled *= 1 - 1e-9;  // equal rates may differ in their last bits
    for (std::uint32_t i = 0; i < flows.size(); i++) {
        const std::uint32_t flow = flows[i];
        const std::int32_t* way = path.data() + path_at[flow];
        const double* weights = weighted ? weight.data() + path_at[flow] : nullptr;
        const auto hops = std::uint32_t(path_at[flow + 1] - path_at[flow]);
        const bool keeps = rate[i] < settled;
        for (std::uint32_t hop = 0; hop < hops; hop++) {
            Shared& one = shared_[way[hop]];
            if (!one.open) {
                one = {0, capacity[way[hop]], 0, 0, false, true};
                open_.push_back(way[hop]);
            }
            if (keeps) {
                one.left -= rate[i] * times(weights, hop);
            } else {
                one.flows++;
                if (weighted) one.weight += weights[hop];
            }
        }
        if (!keeps) waiting_.push_back({i, hops, way, weights, caps[flow], 0});
    }
    std::size_t waiting = waiting_.size();
    while (true) {
        std::size_t kept = 0;
        for (const std::int32_t resource : open_) {
            Shared& one = shared_[resource];
            if (!one.flows) {
                one.open = false;
                continue;
            }
            one.share = std::max(0.0, one.left) / (weighted ? one.weight : one.flows);
            one.tight = true;
            open_[kept++] = resource;
        }
        open_.resize(kept);
        if (!waiting) return;
        for (std::size_t i = 0; i < waiting; i++) {
            Waiting& each = waiting_[i];
            double least = each.cap;
            for (std::uint32_t hop = 0; hop < each.hops; hop++) least = std::min(least, shared_[each.path[hop]].share);
            each.least = least;
            for (std::uint32_t hop = 0; hop < each.hops; hop++) {
                Shared& one = shared_[each.path[hop]];
                one.tight &= least >= one.share * NEAR;
            }
        }
        kept = 0;
        for (std::size_t i = 0; i < waiting; i++) {
            const Waiting& each = waiting_[i];
            bool frozen = each.cap <= each.least;
            for (std::uint32_t hop = 0; hop < each.hops; hop++) frozen |= shared_[each.path[hop]].tight;
            if (!frozen) {
                waiting_[kept++] = each;
                continue;
            }
            rate[each.position] = each.least;
            for (std::uint32_t hop = 0; hop < each.hops; hop++) {
                Shared& one = shared_[each.path[hop]];
                one.left -= each.least * times(each.weight, hop);
                one.flows--;
                if (weighted) one.weight -= each.weight[hop];
            }
        }
        waiting = kept;
    }
}

}  // namespace osf::flow
