// A replay of the demotion policy for Python: numbers in, numbers out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "tier_replay.hpp"

namespace nb = nanobind;
using namespace nb::literals;

void bind_tier_policy(nb::module_& m) {
    m.def(
        "replay_tier_policy",
        [](osf::u64 units, osf::u64 capacity, nb::ndarray<const osf::u32, nb::ndim<1>, nb::c_contig, nb::device::cpu> trace) {
            osf::TierReplay replay;
            {
                nb::gil_scoped_release release;
                replay = osf::replay_tier_policy(units, capacity, {trace.data(), trace.size()});
            }
            return nb::make_tuple(replay.hits, replay.misses, replay.armed, replay.armed_touches);
        },
        "units"_a, "capacity"_a, "trace"_a,
        "Uses of units, in order, through the policy: hits, misses, units armed, and touches of armed units.");
}
