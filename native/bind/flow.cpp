// flow/flow.hpp and flow/run.hpp for Python: arrays in, arrays out. What could read outside of an array is checked here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "flow/flow.hpp"
#include "flow/run.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

namespace {

template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<nb::numpy, double, nb::ndim<1>>;

template <class T>
std::span<const T> view(const In<T>& array) {
    return {array.data(), array.shape(0)};
}

nb::object array_of(std::vector<double> values) {
    auto kept = std::make_unique<std::vector<double>>(std::move(values));
    double* data = kept->data();
    const std::size_t size = kept->size();
    nb::capsule owner(kept.release(), [](void* p) noexcept { delete static_cast<std::vector<double>*>(p); });
    return nb::cast(Doubles(data, {size}, owner));
}

void require(bool good, const std::string& what) {
    if (!good) throw Error(Code::bad_input, what);
}

// A row pointer and what it points into, as in a sparse matrix.
void require_rows(std::span<const std::int64_t> at, std::size_t rows, std::span<const std::int32_t> ids, std::size_t below,
                  const char* what) {
    const std::string name = what;
    require(at.size() == rows + 1 && at[0] == 0 && at[rows] == std::int64_t(ids.size()), name + ": rows and ids do not fit");
    require(std::is_sorted(at.begin(), at.end()), name + ": rows are not in order");
    require(std::all_of(ids.begin(), ids.end(), [&](auto id) { return id >= 0 && std::size_t(id) < below; }),
            name + ": an id is out of range");
}

}  // namespace

void bind_flow(nb::module_& m) {
    m.def(
        "max_min",
        [](In<double> capacity, In<std::int64_t> path_at, In<std::int32_t> path, In<double> cap) {
            const std::size_t count = cap.shape(0);
            require_rows(view(path_at), count, view(path), capacity.shape(0), "paths");
            std::vector<std::uint32_t> flows(count);
            for (std::size_t i = 0; i < count; i++) flows[i] = std::uint32_t(i);
            std::vector<double> rate(count);
            {
                nb::gil_scoped_release free_gil;
                MaxMin(capacity.shape(0)).solve(view(capacity), view(path_at), view(path), {}, view(cap), flows, rate);
            }
            return array_of(std::move(rate));
        },
        "capacity"_a, "path_at"_a, "path"_a, "cap"_a, "Max-min fair rates of flows over resources.");
    m.def(
        "run_tasks",
        [](In<double> capacity, In<double> latency, In<double> work, In<double> delay, In<double> cap,
           In<std::int64_t> path_at, In<std::int32_t> path, In<double> weight, In<std::int32_t> stream, In<std::int32_t> lane,
           In<std::int64_t> next_at, In<std::int32_t> next, In<double> change_time, In<std::int32_t> change_resource,
           In<double> change_capacity,
           double window, bool whole_messages, In<double> reroute_time, In<std::int64_t> reroute_at,
           In<std::int64_t> reroute_begin, In<std::int32_t> reroute_path) {
            const std::size_t count = work.shape(0), changes = change_time.shape(0);
            require(delay.shape(0) == count && cap.shape(0) == count && stream.shape(0) == count && lane.shape(0) == count,
                    "work, delay, cap, stream and lane are not of one length");
            require(latency.shape(0) == capacity.shape(0), "capacity and latency are not of one length");
            require(change_resource.shape(0) == changes && change_capacity.shape(0) == changes, "changes do not fit");
            require(window >= 0, "window is below zero");
            require(!weight.shape(0) || weight.shape(0) == path.shape(0), "weights and paths are not of one length");
            require(std::all_of(weight.data(), weight.data() + weight.shape(0), [](double each) { return each > 0; }),
                    "a weight is not above zero");
            require_rows(view(path_at), count, view(path), capacity.shape(0), "paths");
            require_rows(view(next_at), count, view(next), count, "next");
            FlowTasks tasks{view(work), view(delay), view(cap), view(path_at), view(path), view(weight), view(stream), view(lane),
                            view(next_at), view(next)};
            std::vector<FlowChange> changed;
            for (std::size_t i = 0; i < changes; i++) {
                require(change_resource.data()[i] >= 0 && std::size_t(change_resource.data()[i]) < capacity.shape(0),
                        "a change is of no resource");
                require(!i || change_time.data()[i - 1] <= change_time.data()[i], "changes are not in order of time");
                changed.push_back({change_time.data()[i], change_resource.data()[i], change_capacity.data()[i]});
            }
            std::vector<FlowPaths> reroutes;
            const std::size_t turns = reroute_time.shape(0);
            require(reroute_at.shape(0) == turns * (count + 1) && reroute_begin.shape(0) == turns + 1, "reroutes do not fit");
            require(!turns || (!weight.shape(0) && !whole_messages), "weighted flows and whole messages take no other way");
            for (std::size_t i = 0; i < turns; i++) {
                const auto begin = reroute_begin.data()[i], end = reroute_begin.data()[i + 1];
                require(0 <= begin && begin <= end && end <= std::int64_t(reroute_path.shape(0)), "reroutes are not in order");
                require(!i || reroute_time.data()[i - 1] <= reroute_time.data()[i], "reroutes are not in order of time");
                reroutes.push_back({reroute_time.data()[i], {reroute_at.data() + i * (count + 1), count + 1},
                                    {reroute_path.data() + begin, std::size_t(end - begin)}});
                require_rows(reroutes[i].path_at, count, reroutes[i].path, capacity.shape(0), "paths of a reroute");
                for (std::size_t task = 0; task < count; task++)
                    require((reroutes[i].path_at[task] == reroutes[i].path_at[task + 1]) ==
                                (path_at.data()[task] == path_at.data()[task + 1]), "a reroute takes a path away, or adds one");
            }
            FlowResult result;
            {
                nb::gil_scoped_release free_gil;
                const auto all = view(capacity);
                result = whole_messages ? run_messages(all, view(latency), tasks)
                                        : run_flows({all.begin(), all.end()}, tasks, changed, window, reroutes);
            }
            return nb::make_tuple(array_of(std::move(result.start)), array_of(std::move(result.finish)), result.events,
                                  result.solves);
        },
        "capacity"_a, "latency"_a, "work"_a, "delay"_a, "cap"_a, "path_at"_a, "path"_a, "weight"_a, "stream"_a, "lane"_a,
        "next_at"_a, "next"_a,
        "change_time"_a, "change_resource"_a, "change_capacity"_a, "window"_a, "whole_messages"_a,
        "reroute_time"_a, "reroute_at"_a, "reroute_begin"_a, "reroute_path"_a,
        "(start, finish, events, solves) of tasks in virtual time.");
}

}  // namespace osf::bind
