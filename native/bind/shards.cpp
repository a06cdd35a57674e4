// Tables over several hosts for Python; conversions only.
#include "bind/remote.hpp"
#include "bind/tables.hpp"
#include "shards/calls.hpp"
#include "shards/sharded.hpp"
#include "simd/choose.hpp"
#include "tables/order.hpp"

#include <nanobind/stl/unique_ptr.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

// ids, offsets, bags, ids a bag where there are no offsets, pooling, weights, out, bytes from row to row of it, raw, consistent
using GivenShardedRead = std::tuple<GivenIds, GivenIds, u64, u64, u32, u64, u64, u64, bool, bool>;

static ShardSpec spec_of(u64 id, u32 row_type, u64 rows, u64 dim, u32 optimizer, const GivenSettings& settings, const GivenInit& init, u64 blocks, u32 shift) {
    return {id, {RowType(row_type), Optimizer(optimizer), rows, dim, settings_of(settings), init_of(init)}, blocks, 0, shift, 0};
}

static bool read(Sharded& table, const GivenShardedRead& given, u32 threads) {
    const auto& [ids, offsets, bags, length, pooling, weights, out, stride, raw, consistent] = given;
    const ReadRequest request{nullptr, ids_of(ids), ids_of(offsets), bags, length, Pooling(pooling), at_address<const float>(weights), at_address<char>(out), stride, raw, consistent, table.title, nullptr, nullptr};
    nb::gil_scoped_release release;
    return table.read(request, threads);
}

static std::unique_ptr<Change> update(const std::shared_ptr<Sharded>& table, const GivenIds& ids, u64 gradients, u64 stride, u64 count, const GivenIds& offsets, u64 bags, bool mean, u64 weights,
                                      u64 winners, const GivenSettings& settings, bool any_number) {
    nb::gil_scoped_release release;
    const Update given{nullptr, ids_of(ids), at_address<const float>(gradients), stride, count, ids_of(offsets), bags, mean, at_address<const float>(weights), at_address<const std::int64_t>(winners), settings_of(settings), any_number};
    Summed sums = sum_gradients(given, table->map()->seen.spec.shape.dim, table->title);
    const auto* bytes = reinterpret_cast<const char*>(sums.gradients.data());
    return std::make_unique<Change>(table, ChangeKind::update, given.settings, std::move(sums.rows), std::vector<char>(bytes, bytes + 4 * sums.gradients.size()), std::vector<char>());
}

// Of an id that comes twice, the last.
static std::unique_ptr<Change> write(const std::shared_ptr<Sharded>& table, const GivenIds& given_ids, u64 rows, bool raw, u64 given_states) {
    nb::gil_scoped_release release;
    const Ids ids = ids_of(given_ids);
    const auto map = table->map();
    const TableShape& shape = map->seen.spec.shape;
    const u64 row = row_bytes(shape.row_type, shape.dim), state = given_states ? state_bytes(shape.optimizer, shape.dim) : 0, width = raw ? row : 4 * shape.dim;
    const std::vector<Ordered> order = in_order(ids);
    std::vector<u64> changed;
    std::vector<char> bytes, states;
    for (u64 at = 0; at < order.size(); at++) {
        if (at + 1 < order.size() && order[at + 1].row == order[at].row) continue;
        changed.push_back(order[at].row);
        const char* from = at_address<const char>(rows) + order[at].position * width;
        bytes.resize(bytes.size() + row);
        if (raw) std::memcpy(bytes.data() + bytes.size() - row, from, row);
        else kernels().narrow[u32(shape.row_type)](reinterpret_cast<const float*>(from), bytes.data() + bytes.size() - row, shape.dim);
        const char* old = at_address<const char>(given_states) + order[at].position * state;
        if (state) states.insert(states.end(), old, old + state);
    }
    return std::make_unique<Change>(table, ChangeKind::write, Settings{}, std::move(changed), std::move(bytes), std::move(states));
}

static nb::dict facts(const ShardSeen& seen) {
    const TableShape& shape = seen.spec.shape;
    nb::dict result;
    result["rows"] = shape.rows;
    result["dim"] = shape.dim;
    result["row_type"] = u32(shape.row_type);
    result["row_bytes"] = row_bytes(shape.row_type, shape.dim);
    result["optimizer"] = u32(shape.optimizer);
    result["settings"] = nb::make_tuple(shape.settings.lr, shape.settings.eps, shape.settings.beta1, shape.settings.beta2);
    result["state_bytes"] = state_bytes(shape.optimizer, shape.dim);
    result["init"] = nb::make_tuple(u32(shape.init.kind), shape.init.first, shape.init.second, shape.init.seed);
    result["block_rows"] = 1ull << seen.spec.block_shift;
    result["blocks"] = seen.spec.blocks;
    result["here"] = seen.spec.here;
    result["bytes"] = seen.bytes;
    result["steps"] = seen.steps;
    result["updated_rows"] = seen.updated_rows;
    result["interrupted"] = seen.interrupted;
    result["read_rows"] = seen.read_rows;
    result["maker_lives"] = bool(seen.maker_lives);
    return result;
}

static nb::dict map_of(Sharded& table) {
    const auto map = table.map();
    nb::dict result = facts(map->seen);
    nb::list shards, places;
    for (u64 host = 0; host < map->places.size(); host++) {
        shards.append(map->places[host].empty() ? nb::object(nb::none()) : nb::object(facts(map->shards[host])));
        nb::list words;
        for (u32 word : map->places[host]) words.append(u32(place_of(word)));
        places.append(words);
    }
    nb::list hosts, reads, silent;
    for (u64 block = 0; block < div_up(map->rows(), 1ull << map->shift()); block++) {
        hosts.append(map->host[block] == NOWHERE ? -1 : int(map->host[block]));
        reads.append(map->reads[block]);
    }
    for (const std::string& host : map->silent) silent.append(host);
    result["shards"] = shards;
    result["places"] = places;
    result["hosts"] = hosts;
    result["reads"] = reads;
    result["silent"] = silent;
    return result;
}

static nb::dict counts(Sharded& table) {
    const ShardedCounts found = table.counts();
    nb::dict result;
    result["own_ids"] = found.own;
    result["copied_ids"] = found.copied;
    result["fetched_ids"] = found.fetched;
    result["waited_ids"] = found.waited;
    result["ids_summed_there"] = found.at_owner;
    result["hot_rows"] = found.hot;
    result["staged_rows"] = found.staged;
    result["refreshed_rows"] = found.refreshed;
    result["prefetch_failed"] = found.prefetch_failed;
    return result;
}

void bind_shards(nb::module_& m) {
    nb::class_<Change>(m, "ShardedChange")
        .def("apply", [](Change& change, u32 threads) { nb::gil_scoped_release release; return change.apply(threads); }, "threads"_a)
        .def_prop_ro("left", &Change::left);
    nb::class_<Sharded>(m, "ShardedCore")
        .def("__reduce__", refuse_pickle)
        .def(nb::new_([](const std::shared_ptr<Space>& space, u64 id, std::vector<std::shared_ptr<Remote>> hosts, std::string title, bool owner_sums) {
                 nb::gil_scoped_release release;
                 return std::make_shared<Sharded>(space, id, std::move(hosts), std::move(title), owner_sums);
             }), "space"_a, "id"_a, "hosts"_a, "title"_a, "owner_sums"_a)
        .def("refresh", [](Sharded& table) { nb::gil_scoped_release release; table.refresh(); })
        .def("map", map_of)
        .def("counts", counts)
        .def_prop_ro("rows", [](Sharded& table) { return table.map()->rows(); })
        .def("check", [](Sharded& table, const GivenIds& ids) { nb::gil_scoped_release release; table.check(ids_of(ids)); }, "ids"_a)
        .def("read", read, "request"_a, "threads"_a)
        .def("states", [](Sharded& table, const GivenIds& given, u64 out) {
                 nb::gil_scoped_release release;
                 const Ids ids = ids_of(given);
                 std::vector<u64> wanted(ids.count);
                 for (u64 at = 0; at < ids.count; at++) wanted[at] = ids[at];
                 return table.states(wanted, at_address<char>(out));
             }, "ids"_a, "out"_a)
        .def("update", update, "ids"_a, "gradients"_a, "stride"_a, "count"_a, "offsets"_a, "bags"_a, "mean"_a, "weights"_a, "winners"_a, "settings"_a, "any_number"_a)
        .def("write", write, "ids"_a, "rows"_a, "raw"_a, "states"_a)
        .def("copy_block", [](Sharded& table, u32 block, u32 to) { nb::gil_scoped_release release; table.copy_block(block, to); }, "block"_a, "to"_a)
        .def("keep_copies", [](Sharded& table, u64 rows, double fresh_s) { nb::gil_scoped_release release; table.keep_copies(rows, fresh_s); }, "rows"_a, "fresh_s"_a)
        .def("prefetch", [](Sharded& table, const GivenIds& ids) { nb::gil_scoped_release release; table.prefetch(ids_of(ids)); }, "ids"_a);
    m.def("shard_make", [](const std::shared_ptr<Space>& space, const std::shared_ptr<Remote>& remote, u64 id, u32 row_type, u64 rows, u64 dim, u32 optimizer, const GivenSettings& settings,
                           const GivenInit& init, u64 blocks, u32 shift, const std::vector<u32>& here) {
        const ShardSpec spec = spec_of(id, row_type, rows, dim, optimizer, settings, init, blocks, shift);
        nb::gil_scoped_release release;
        if (remote) shard_make(*remote, spec, here);
        else Shard::make(space, spec, here);
    }, "space"_a, "remote"_a.none(), "id"_a, "row_type"_a, "rows"_a, "dim"_a, "optimizer"_a, "settings"_a, "init"_a, "blocks"_a, "shift"_a, "here"_a);
    m.def("shard_block", [](const std::shared_ptr<Space>& space, const std::shared_ptr<Remote>& remote, u64 id, u8 verb, u32 block, u64 number) {
        nb::gil_scoped_release release;
        if (remote) return shard_block(*remote, id, BlockVerb(verb), block, number);
        auto shard = Shard::open(space, id);
        if (!shard) throw Error(Code::unknown_name, "this host has no rows of the table");
        shard->block(BlockVerb(verb), block, number);
    }, "space"_a, "remote"_a.none(), "id"_a, "verb"_a, "block"_a, "number"_a);
    m.def("shard_discard", [](const std::shared_ptr<Space>& space, const std::shared_ptr<Remote>& remote, u64 id) {
        nb::gil_scoped_release release;
        if (remote) shard_discard(*remote, id);
        else Shard::discard(space, id);
    }, "space"_a, "remote"_a.none(), "id"_a);
    m.attr("SHARD_BLOCKS") = SHARD_BLOCKS;
}

}  // namespace osf::bind
