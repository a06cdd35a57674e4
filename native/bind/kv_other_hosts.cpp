// KV pools of other hosts for Python; conversions only.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>

#include "bind/kv.hpp"
#include "kv/other_hosts.hpp"

namespace osf::bind {

using namespace nb::literals;

static bool ctrl_c() {
    nb::gil_scoped_acquire acquire;
    return PyErr_CheckSignals() < 0;
}

static KvSight seek(Remote& remote, std::string_view pool, u8 what, u64 first, u32 keep, nb::bytes keys) {
    if (keys.size() % sizeof(KvKey)) throw Error(Code::bad_input, "keys have 32 bytes each");
    std::span<const char> given(keys.c_str(), keys.size());
    nb::gil_scoped_release release;
    return kv_seek(remote, pool, KvWhat(what), first, keep, given);
}

static u64 fetch(KvDraft& draft, Remote& remote, const KvSight& sight, u64 first) {
    u64 came = 0;
    {
        nb::gil_scoped_release release;
        came = kv_fetch(draft, remote, sight, first, ctrl_c);
    }
    if (PyErr_Occurred()) throw nb::python_error();
    return came;
}

// An object, so that the turn is dropped whatever signal comes when.
static std::unique_ptr<KvTurn> take_turn(std::shared_ptr<KvPool> pool, nb::bytes key, double timeout_s) {
    constexpr long SLICE = 100'000'000;
    auto turn = std::make_unique<KvTurn>(std::move(pool), root_of(key));
    const u64 end = now_ns() + u64(timeout_s * 1e9);
    bool taken = false;
    {
        nb::gil_scoped_release release;
        while (!(taken = turn->take(SLICE)) && now_ns() < end && !ctrl_c()) {}
    }
    if (PyErr_Occurred()) throw nb::python_error();
    return taken ? std::move(turn) : nullptr;
}

void bind_kv_other_hosts(nb::module_& m) {
    nb::class_<KvTurn>(m, "KVTurn").def("drop", &KvTurn::drop);
    nb::class_<KvSight>(m, "KVSight")
        .def("__len__", [](const KvSight& sight) { return sight.places.size(); })
        .def_prop_ro("nbytes", [](const KvSight& sight) { return sight.seen.nbytes; })
        .def_prop_ro("address", [](const KvSight& sight) { return sight.seen.pool; })
        .def_prop_ro("gone", [](const KvSight& sight) { return sight.seen.gone; });
    m.def("kv_seek", seek, "remote"_a, "pool"_a, "what"_a, "first"_a, "keep"_a, "keys"_a);
    m.def("kv_clear", [](Remote& remote, std::string_view pool, std::optional<std::string> tenant) {
        nb::gil_scoped_release release;
        return kv_clear(remote, pool, tenant ? &*tenant : nullptr);
    }, "remote"_a, "pool"_a, "tenant"_a.none());
    m.def("kv_fetch", fetch, "draft"_a, "remote"_a, "sight"_a, "first"_a);
    m.def("kv_take_turn", take_turn, "pool"_a, "key"_a, "timeout_s"_a);
    m.def("kv_name_key", [](nb::bytes root, nb::bytes name) {
        const KvKey key = kv_name_key(root_of(root), {reinterpret_cast<const u8*>(name.c_str()), name.size()});
        return nb::bytes(reinterpret_cast<const char*>(&key), sizeof key);
    });
}

}  // namespace osf::bind
