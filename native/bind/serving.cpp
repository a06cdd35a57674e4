// serving/cluster.hpp for Python: columns in, columns out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "serving/cluster.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> values(const Column<T>& column) { return {column.data(), column.shape(0)}; }

template <class T, class From>
nb::object column_of(u64 count, From from) {
    auto kept = std::make_unique<std::vector<T>>(count);
    for (u64 at = 0; at < count; at++) (*kept)[at] = T(from(at));
    T* data = kept->data();
    nb::capsule owner(kept.release(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size_t(count)}, owner));
}

void check_ids(std::span<const u64> ids_at, u64 requests, u64 ids) {
    if (ids_at.size() != requests + 1 || ids_at[0] || ids_at[requests] != ids || !std::is_sorted(ids_at.begin(), ids_at.end()))
        throw Error(Code::bad_input, "ids of blocks do not fit the requests");
}

nb::dict plain(const Served& served) {
    const auto& requests = served.requests;
    const u64 count = requests.size();
    nb::dict result;
    result["arrives"] = column_of<double>(count, [&](u64 at) { return requests[at].arrives; });
    result["first"] = column_of<double>(count, [&](u64 at) { return requests[at].first; });
    result["last"] = column_of<double>(count, [&](u64 at) { return requests[at].last; });
    result["made"] = column_of<u32>(count, [&](u64 at) { return requests[at].made; });
    result["found"] = column_of<u32>(count, [&](u64 at) { return requests[at].found; });
    result["fetched"] = column_of<u32>(count, [&](u64 at) { return requests[at].fetched; });
    result["preempted"] = column_of<u32>(count, [&](u64 at) { return requests[at].preempted; });
    result["replica"] = column_of<u32>(count, [&](u64 at) { return requests[at].replica; });
    nb::list replicas;
    for (const ReplicaPast& each : served.replicas) {
        nb::dict one;
        one["busy_s"] = each.busy_s;
        one["steps"] = each.steps;
        one["tokens"] = each.tokens;
        one["preemptions"] = each.preemptions;
        one["most_blocks"] = each.most_blocks;
        const u64 steps = each.record.size();
        one["start_s"] = column_of<double>(steps, [&](u64 at) { return each.record[at].start; });
        one["end_s"] = column_of<double>(steps, [&](u64 at) { return each.record[at].end; });
        one["step_tokens"] = column_of<u32>(steps, [&](u64 at) { return each.record[at].tokens; });
        one["step_decodes"] = column_of<u32>(steps, [&](u64 at) { return each.record[at].decodes; });
        replicas.append(one);
    }
    result["replicas"] = replicas;
    nb::dict pool;
    pool["asked"] = served.asked, pool["found"] = served.found, pool["slow"] = served.found_slow, pool["stored"] = served.stored;
    pool["declined"] = served.declined, pool["demoted"] = served.demoted, pool["evicted"] = served.evicted, pool["live"] = served.live;
    result["pool"] = pool;
    return result;
}

}  // namespace

void bind_serving(nb::module_& m) {
    nb::class_<StepTimes>(m, "StepTimes")
        .def(nb::init<>())
        .def("set", [](StepTimes& times, const std::string& name, std::vector<std::vector<double>> axes, Column<double> table) {
            Grid grid(std::move(axes), {table.data(), table.data() + table.shape(0)});
            const u64 wanted = name == "mixed" ? 4 : name == "prefill" || name == "decode" ? 2 : 1;
            if (grid.axes() != wanted) throw Error(Code::bad_input, name + ": a table of " + std::to_string(wanted) + " axes is wanted");
            (name == "dense" ? times.dense : name == "sampling" ? times.sampling : name == "prefill" ? times.prefill : name == "decode" ? times.decode : times.mixed) = std::move(grid);
        }, "name"_a, "axes"_a, "table"_a)
        .def_rw("graphs", &StepTimes::graphs)
        .def_rw("host_s", &StepTimes::host_s)
        .def_rw("host_sequence_s", &StepTimes::host_sequence_s)
        .def_rw("eager_s", &StepTimes::eager_s)
        .def("seconds", [](const StepTimes& times, const std::vector<std::pair<u32, u32>>& prompts, u32 decodes, double context) {
            Step step;
            for (auto [tokens, before] : prompts) times.add_prefill(step, tokens, before);
            step.sampled = u32(prompts.size()) + decodes;
            step.tokens += decodes;
            step.decodes = decodes;
            step.context = context * decodes;
            return times.seconds(step);
        }, "prompts"_a, "decodes"_a, "context"_a);
    nb::class_<Rules>(m, "EngineRules")
        .def(nb::init<>())
        .def_rw("block_tokens", &Rules::block_tokens)
        .def_rw("blocks", &Rules::blocks)
        .def_rw("most_tokens", &Rules::most_tokens)
        .def_rw("most_sequences", &Rules::most_sequences)
        .def_rw("under_way", &Rules::under_way)
        .def_rw("whole", &Rules::whole)
        .def_rw("mix", &Rules::mix)
        .def_rw("prefixes", &Rules::prefixes);
    m.def("serve",
        [](Column<double> arrives, Column<u32> input, Column<u32> output, Column<u64> ids_at, Column<u32> ids, const Rules& rules, const StepTimes& times, u32 replicas,
           const Rules& decode_rules, const StepTimes& decode_times, u32 decode_replicas, u32 routing, u32 clients, double think_s, double entry_s, u32 id_tokens, u32 pools, u32 pool_slots,
           u32 pool_fast, u64 block_bytes, double fetch_s, double fast_s_token, double slow_s_token, double hand_over_s, double hand_over_s_token, bool record) {
            const u64 count = arrives.shape(0);
            if (input.shape(0) != count || output.shape(0) != count) throw Error(Code::bad_input, "columns of requests differ in length");
            check_ids(values(ids_at), count, ids.shape(0));
            if (!replicas || !rules.block_tokens || !rules.most_tokens || !rules.most_sequences || !id_tokens || routing > 2) throw Error(Code::bad_input, "an engine's rules have a zero");
            Cluster cluster{rules, decode_rules, &times, &decode_times, replicas, decode_replicas, Routing(routing), clients, think_s, entry_s, id_tokens, pools,
                            {pool_slots, pool_fast, block_bytes}, fetch_s, fast_s_token, slow_s_token, hand_over_s, hand_over_s_token, record};
            Served served;
            {
                nb::gil_scoped_release release;
                served = simulate(cluster, {values(arrives), values(input), values(output), values(ids_at), values(ids)});
            }
            return plain(served);
        },
        "arrives"_a, "input"_a, "output"_a, "ids_at"_a, "ids"_a, "rules"_a, "times"_a, "replicas"_a, "decode_rules"_a, "decode_times"_a, "decode_replicas"_a, "routing"_a,
        "clients"_a, "think_s"_a, "entry_s"_a, "id_tokens"_a, "pools"_a, "pool_slots"_a, "pool_fast"_a, "block_bytes"_a, "fetch_s"_a, "fast_s_token"_a, "slow_s_token"_a, "hand_over_s"_a,
        "hand_over_s_token"_a, "record"_a);
    m.def("replay_pool",
        [](u32 slots, u32 fast, u64 block_bytes, Column<u64> ids_at, Column<u32> ids, u64 counted, u64 seed) {
            if (!slots || !ids_at.shape(0)) throw Error(Code::bad_input, "a pool of no blocks, or a trace of no requests");
            check_ids(values(ids_at), ids_at.shape(0) - 1, ids.shape(0));
            Replayed done;
            {
                nb::gil_scoped_release release;
                done = replay_pool({slots, fast, block_bytes}, values(ids_at), values(ids), counted, seed);
            }
            return nb::make_tuple(done.asked, done.found, done.slow, done.stored, done.evicted, done.demoted);
        },
        "slots"_a, "fast"_a, "block_bytes"_a, "ids_at"_a, "ids"_a, "counted"_a = 0, "seed"_a = 1);
}

}  // namespace osf::bind
