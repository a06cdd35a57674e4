// Tables for Python; conversions only. Buffers come as addresses: Python has checked their types and sizes, and keeps them.
#include <nanobind/stl/variant.h>

#include "bind/tables.hpp"
#include "space/sync.hpp"
#include "simd/choose.hpp"
#include "tables/cold.hpp"
#include "tables/keys.hpp"
#include "tables/update.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

// table or its keys, ids, offsets, bags, ids a bag where there are no offsets, pooling, weights, out, bytes from row to row of it, raw, consistent, title,
// winners
using GivenRead = std::tuple<std::variant<std::shared_ptr<Table>, std::shared_ptr<Keys>>, GivenIds, GivenIds, u64, u64, u32, u64, u64, u64, bool, bool, std::string, u64>;

static std::shared_ptr<Table> make(const std::shared_ptr<Space>& space, u32 row_type, u64 rows, u64 dim, u32 optimizer, const GivenSettings& settings, const GivenInit& init) {
    nb::gil_scoped_release release;
    return Table::make(space, {RowType(row_type), Optimizer(optimizer), rows, dim, settings_of(settings), init_of(init)});
}

static void read(const std::vector<GivenRead>& given, u32 threads) {
    std::vector<ReadRequest> requests;
    for (const auto& [of, ids, offsets, bags, length, pooling, weights, out, stride, raw, consistent, title, winners] : given) {
        const auto* keys = std::get_if<std::shared_ptr<Keys>>(&of);
        const auto& table = keys ? (*keys)->table : std::get<std::shared_ptr<Table>>(of);
        requests.push_back({table, ids_of(ids), ids_of(offsets), bags, length, Pooling(pooling), at_address<const float>(weights), at_address<char>(out), stride, raw, consistent, title,
                            at_address<std::int64_t>(winners), keys ? *keys : nullptr});
    }
    nb::gil_scoped_release release;
    read_rows(requests, threads);
}

static void update(const std::shared_ptr<Table>& table, const GivenIds& ids, u64 gradients, u64 stride, u64 count, const GivenIds& offsets, u64 bags, bool mean, u64 weights,
                   u64 winners, const GivenSettings& settings, bool any_number, u32 threads) {
    nb::gil_scoped_release release;
    update_rows({table, ids_of(ids), at_address<const float>(gradients), stride, count, ids_of(offsets), bags, mean, at_address<const float>(weights),
                 at_address<const std::int64_t>(winners), settings_of(settings), any_number},
                threads);
}

static nb::dict stats(Table& table) {
    const TableStats found = table.stats();
    nb::dict result;
    result["rows"] = found.rows;
    result["dim"] = found.dim;
    result["row_type"] = u32(found.row_type);
    result["row_bytes"] = found.row_bytes;
    result["optimizer"] = u32(found.optimizer);
    result["settings"] = nb::make_tuple(found.settings.lr, found.settings.eps, found.settings.beta1, found.settings.beta2);
    result["state_bytes"] = found.state_bytes;
    result["init"] = nb::make_tuple(u32(found.init.kind), found.init.first, found.init.second, found.init.seed);
    result["room"] = found.room;
    result["parts"] = found.parts;
    result["bytes"] = found.bytes;
    result["steps"] = found.steps;
    result["updated_rows"] = found.updated_rows;
    result["interrupted"] = found.interrupted;
    result["read_rows"] = found.read_rows;
    result["id"] = found.id;
    return result;
}

void bind_tables(nb::module_& m) {
    nb::class_<Table>(m, "TableCore")
        .def("__reduce__", refuse_pickle)
        .def_static("make", make, "space"_a, "row_type"_a, "rows"_a, "dim"_a, "optimizer"_a, "settings"_a, "init"_a)
        .def_static("open", [](const std::shared_ptr<Space>& space, std::string_view name) { nb::gil_scoped_release release; return Table::open(space, name); })
        .def("publish", [](Table& table, std::string_view name) { nb::gil_scoped_release release; table.publish(name); })
        .def("grow", [](Table& table, u64 more) { nb::gil_scoped_release release; table.grow(more); })
        .def("stats", stats)
        .def("parts", [](Table& table) {
                 nb::list result;
                 for (const Snapshot::Part& part : table.snapshot()->parts) result.append(nb::make_tuple(part.first, u64(part.rows), u64(part.state)));
                 return result;
             })
        .def("update", update, "ids"_a, "gradients"_a, "stride"_a, "count"_a, "offsets"_a, "bags"_a, "mean"_a, "weights"_a, "winners"_a, "settings"_a, "any_number"_a, "threads"_a)
        .def("write", [](const std::shared_ptr<Table>& table, const GivenIds& ids, u64 rows, bool raw, u64 states) {
                 nb::gil_scoped_release release;
                 write_rows(table, ids_of(ids), at_address<const char>(rows), raw, at_address<const char>(states));
             }, "ids"_a, "rows"_a, "raw"_a, "states"_a)
        .def("states", [](const std::shared_ptr<Table>& table, const GivenIds& ids, u64 out) {
                 nb::gil_scoped_release release;
                 read_states(table, ids_of(ids), at_address<char>(out));
             }, "ids"_a, "out"_a)
        .def("set_steps", [](Table& table, u64 steps) { set_steps(table, steps); })
        .def("steps_address", [](Table& table) { return u64(&table.head().steps); })
        .def("prefetch", [](Table& table, const GivenIds& ids) { nb::gil_scoped_release release; prefetch_rows(table, ids_of(ids)); }, "ids"_a)
        .def("keep_hot", [](Table& table, u64 bytes) { nb::gil_scoped_release release; table.keep_hot(bytes); }, "bytes"_a)
        .def("cold_counts", [](Table& table) {   // rows that this process read from flash, and had in memory as hot ones
                 auto cold = table.cold();
                 return cold ? nb::make_tuple(cold->reads.load(), cold->hits.load()) : nb::make_tuple(0, 0);
             })
        .def("check_usable", &Table::check_usable)
        .def_prop_ro("read_only", [](const Table& table) { return table.space->read_only(); })
        .def_prop_ro("name", &Table::name);
    m.def("table_read", read, "requests"_a, "threads"_a);
    m.def("table_discard", [](const Pin& pin) { nb::gil_scoped_release release; Table::discard(pin.space, pin.held); });
    m.def("table_deleted", [](const Pin& pin) { return load(reinterpret_cast<const TableHead*>(pin.bytes())->deleted) != 0; });
    m.def("table_row_bytes", [](u32 row_type, u64 dim) { return row_bytes(RowType(row_type), dim); });
    m.def("table_kernels", [] {
        nb::list result;
        for (const Kernels* one : all_kernels()) result.append(one->name);
        return result;
    });
    m.def("choose_table_kernels", choose_kernels);
    m.attr("TABLE_DIM_MOST") = TABLE_DIM_MOST;
}

}  // namespace osf::bind
