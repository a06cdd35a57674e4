// measure/measure.hpp for Python: addresses are integers, times are seconds, and the GIL is free while anything runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "measure/measure.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

namespace {

std::byte* at(std::uintptr_t address) {
    if (address == 0) throw std::invalid_argument("address 0 is not memory");
    return reinterpret_cast<std::byte*>(address);
}

std::uintptr_t address_of(const std::byte* data) { return reinterpret_cast<std::uintptr_t>(data); }

}  // namespace

void bind_measure(nb::module_& m) {
    using free_gil = nb::call_guard<nb::gil_scoped_release>;

    nb::class_<Pages>(m, "Pages", "Touched anonymous memory with a wanted page size; freed with the object.")
        .def(nb::init<std::size_t, std::size_t>(), "nbytes"_a, "page_bytes"_a = 0, free_gil())
        .def_prop_ro("address", [](const Pages& pages) { return address_of(pages.data()); })
        .def_prop_ro("nbytes", &Pages::nbytes)
        .def_prop_ro("huge_bytes", &Pages::huge_bytes, "How much of it the kernel really gave as huge pages.");

    m.def(
        "stream_read",
        [](std::uintptr_t address, std::size_t nbytes) { return stream_read(at(address), nbytes); },
        "address"_a, "nbytes"_a, free_gil(), "Read every byte in order; return the sum of the words.");
    m.def(
        "time_reads",
        [](std::uintptr_t address, std::size_t nbytes, unsigned threads, unsigned repetitions) {
            return time_reads(at(address), nbytes, threads, repetitions);
        },
        "address"_a, "nbytes"_a, "threads"_a = 1, "repetitions"_a = 1, free_gil(), "Seconds of each whole read.");
    m.def(
        "time_writes",
        [](std::uintptr_t address, std::size_t nbytes, unsigned threads, unsigned repetitions) {
            return time_writes(at(address), nbytes, threads, repetitions);
        },
        "address"_a, "nbytes"_a, "threads"_a = 1, "repetitions"_a = 1, free_gil(),
        "Seconds of each whole overwrite (memset).");
    m.def(
        "time_copies",
        [](std::uintptr_t target, std::uintptr_t source, std::size_t nbytes, unsigned threads, unsigned repetitions) {
            return time_copies(at(target), at(source), nbytes, threads, repetitions);
        },
        "target"_a, "source"_a, "nbytes"_a, "threads"_a = 1, "repetitions"_a = 1, free_gil(),
        "Seconds of each whole memcpy.");
    m.def(
        "chain_lines",
        [](std::uintptr_t address, std::size_t nbytes, std::uint64_t seed) {
            chain_lines(at(address), nbytes, seed);
        },
        "address"_a, "nbytes"_a, "seed"_a = 1, free_gil(),
        "Overwrite the range with one random cycle of pointers, a line each, for chase().");
    m.def(
        "chase",
        [](std::uintptr_t line, std::uint64_t count) {
            const auto run = chase(at(line), count);
            return std::pair{run.seconds, address_of(run.end)};
        },
        "line"_a, "count"_a, free_gil(),
        "(seconds of `count` dependent loads along a chain of chain_lines(), the line it stopped at).");
    m.def(
        "random_loads",
        [](std::uintptr_t address, std::size_t nbytes, std::uint64_t count, std::uint64_t seed, bool dependent) {
            return random_loads(at(address), nbytes, count, seed, dependent);
        },
        "address"_a, "nbytes"_a, "count"_a, "seed"_a = 1, "dependent"_a = false, free_gil(),
        "Seconds of `count` loads at random lines; the content is neither used nor changed.");
    m.def(
        "loaded_latency",
        [](std::uintptr_t line, std::uint64_t count, std::uintptr_t address, std::size_t nbytes, unsigned threads,
           double duty) {
            const auto point = loaded_latency(at(line), count, at(address), nbytes, threads, duty);
            return std::tuple{point.load_bytes_per_s, point.latency_s, address_of(point.end)};
        },
        "line"_a, "count"_a, "address"_a, "nbytes"_a, "threads"_a, "duty"_a, free_gil(),
        "(bytes per second streamed by other threads, seconds per dependent load, the line it stopped at).");
    m.def("loopback_round_trips", &loopback_round_trips, "nbytes"_a, "repetitions"_a, free_gil(),
          "Seconds of each round trip over loopback TCP.");
    m.def("loopback_stream", &loopback_stream, "nbytes"_a, "chunk_bytes"_a, free_gil(),
          "Seconds to stream `nbytes` over loopback TCP, acknowledged.");
    m.def(
        "serve_replies",
        [](int fd, std::uintptr_t address, std::size_t nbytes) { serve_replies(fd, at(address), nbytes); }, "fd"_a,
        "address"_a, "nbytes"_a, free_gil(), "Answer time_replies() of another process from this memory until it hangs up.");
    m.def(
        "time_replies",
        [](int fd, std::uintptr_t address, std::size_t nbytes, std::size_t chunk, unsigned repetitions, unsigned spin_us) {
            return time_replies(fd, at(address), nbytes, chunk, repetitions, spin_us);
        },
        "fd"_a, "address"_a, "nbytes"_a, "chunk"_a, "repetitions"_a, "spin_us"_a = 0, free_gil(),
        "Seconds of each reply of `nbytes` into this memory: a small request, the bytes back.");
}

}  // namespace osf::bind
