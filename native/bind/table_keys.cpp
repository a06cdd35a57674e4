// Dynamic ids of tables for Python; conversions only.
#include "bind/tables.hpp"
#include "tables/keys.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

static nb::tuple list(const Keys& keys) {
    std::vector<std::int64_t> found, rows;
    {
        nb::gil_scoped_release release;
        keys.list(found, rows);
    }
    auto bytes = [](const std::vector<std::int64_t>& of) { return nb::bytes(reinterpret_cast<const char*>(of.data()), of.size() * sizeof(std::int64_t)); };
    return nb::make_tuple(bytes(found), bytes(rows));
}

static nb::dict stats(const Keys& keys) {
    const KeysStats found = keys.stats();
    nb::dict result;
    result["room"] = found.rows;
    result["keys"] = found.used;
    result["admitted"] = found.admitted;
    result["evicted"] = found.evicted;
    result["refused"] = found.refused;
    result["admit_after"] = found.admit_after;
    return result;
}

static void update(Keys& keys, const GivenIds& ids, u64 gradients, u64 stride, u64 count, const GivenIds& offsets, u64 bags, bool mean, u64 weights, u64 winners, const GivenSettings& settings, bool any_number,
                   u32 threads) {
    nb::gil_scoped_release release;
    keys.update({keys.table, ids_of(ids), at_address<const float>(gradients), stride, count, ids_of(offsets), bags, mean, at_address<const float>(weights), at_address<const std::int64_t>(winners), settings_of(settings), any_number}, threads);
}

void bind_table_keys(nb::module_& m) {
    nb::class_<Keys>(m, "TableKeys")
        .def("__reduce__", refuse_pickle)
        .def_static("make", [](const std::shared_ptr<Table>& table, u32 admit_after, u64 half_life) { nb::gil_scoped_release release; Keys::make(table, admit_after, half_life); }, "table"_a, "admit_after"_a, "half_life"_a)
        .def_static("open", [](const std::shared_ptr<Table>& table) { nb::gil_scoped_release release; return Keys::open(table); }, "table"_a)
        .def("rows_of", [](Keys& keys, const GivenIds& ids, u64 rows) { nb::gil_scoped_release release; return keys.rows_of(ids_of(ids), at_address<std::int64_t>(rows)); }, "keys"_a, "rows"_a)
        .def("still", [](Keys& keys, const GivenIds& ids, u64 rows, u64 changes) { nb::gil_scoped_release release; return keys.still(ids_of(ids), at_address<const std::int64_t>(rows), changes); }, "keys"_a, "rows"_a, "changes"_a)
        .def_prop_ro("changes", &Keys::changes)
        .def("update", update, "keys"_a, "gradients"_a, "stride"_a, "count"_a, "offsets"_a, "bags"_a, "mean"_a, "weights"_a, "winners"_a, "settings"_a, "any_number"_a, "threads"_a)
        .def("write", [](Keys& keys, const GivenIds& ids, u64 rows, bool raw, u64 states) {
                 nb::gil_scoped_release release;
                 return keys.write(ids_of(ids), at_address<const char>(rows), raw, at_address<const char>(states));
             }, "keys"_a, "rows"_a, "raw"_a, "states"_a)
        .def("settle", [](Keys& keys, const GivenIds& ids, u64 rows) { nb::gil_scoped_release release; keys.settle(ids_of(ids), at_address<const std::int64_t>(rows)); }, "keys"_a, "rows"_a)
        .def("list", list)
        .def("stats", stats);
}

}  // namespace osf::bind
