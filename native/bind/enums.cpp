// The core's enumerations for Python: one list for both.
#include <nanobind/nanobind.h>

#include "coherence/coherence.hpp"
#include "kv/calls.hpp"
#include "space/sync.hpp"
#include "tiers/client.hpp"

namespace nb = nanobind;

namespace osf::bind {

void bind_enums(nb::module_& m) {
    nb::enum_<Kind>(m, "Kind", nb::is_arithmetic())
        .value("ARRAY", kind_array)
        .value("LOCK", kind_lock)
        .value("BARRIER", kind_barrier)
        .value("CHANNEL", kind_channel)
        .value("COUNTER", kind_counter)
        .value("POOL", kind_pool)
        .value("TABLE", kind_table)
        .value("SHARDED", kind_sharded);
    enum class StateNumber : u64 { draft = state_number(draft), live = state_number(live) };
    nb::enum_<StateNumber>(m, "State", nb::is_arithmetic()).value("DRAFT", StateNumber::draft).value("LIVE", StateNumber::live);
    nb::enum_<HomeState>(m, "HomeState", nb::is_arithmetic()).value("AT_HOME", at_home).value("SHARED", home_shared).value("LENT", lent);
    nb::enum_<Want>(m, "Want", nb::is_arithmetic())
        .value("PREFETCH", Want::prefetch)
        .value("PIN", Want::pin)
        .value("DEMOTE", Want::demote)
        .value("DISCARD", Want::discard)
        .value("FLUSH", Want::flush);
    nb::enum_<KvWhat>(m, "KVWhat", nb::is_arithmetic())
        .value("LOOK", KvWhat::look)
        .value("USE", KvWhat::use)
        .value("EVICT", KvWhat::evict)
        .value("LOOK_VALUE", KvWhat::look_value)
        .value("USE_VALUE", KvWhat::use_value)
        .value("EVICT_VALUE", KvWhat::evict_value);
    m.attr("KV_KEYS_MAX") = KV_KEYS_MAX;
    m.attr("RANGES_MAX") = RANGES_MAX;
}

}  // namespace osf::bind
