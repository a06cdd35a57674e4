// A replay of the demotion policy for Python: numbers in, numbers out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "tiers/replay.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

void bind_tier_policy(nb::module_& m) {
    m.def(
        "replay_tier_policy",
        [](u64 units, u64 capacity, nb::ndarray<const u32, nb::ndim<1>, nb::c_contig, nb::device::cpu> trace) {
            TierReplay replay;
            {
                nb::gil_scoped_release release;
                replay = replay_tier_policy(units, capacity, {trace.data(), trace.size()});
            }
            return nb::make_tuple(replay.hits, replay.misses, replay.armed, replay.armed_touches);
        },
        "units"_a, "capacity"_a, "trace"_a,
        "Uses of units, in order, through the policy: hits, misses, units armed, and touches of armed units.");
}

}  // namespace osf::bind
