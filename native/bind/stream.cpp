// Transfers between an arena and the homes of storages, for Python. Conversions only.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bind/wait.hpp"
#include "base/checksum.hpp"
#include "stream/stream.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

using Tickets = std::vector<std::shared_ptr<StreamTicket>>;

static Home home_of(std::shared_ptr<StreamFile> file, u64 at) { return {std::move(file), at}; }

static Check check_of(std::optional<u64> expected, bool compute, u64 first) {
    return {expected ? Verify::compare : compute ? Verify::compute : Verify::nothing, expected.value_or(0), first};
}

static u64 check_padded(u64 address, u64 bytes, u64 first) {
    const char* from = reinterpret_cast<const char*>(address);
    const u64 whole = bytes / PIECE * PIECE, rest = bytes - whole;
    u64 sum = check_pieces(from, whole, first);
    if (!rest) return sum;
    std::string last(align_up(rest, SECTOR), '\0');
    std::memcpy(last.data(), from + whole, rest);
    return sum + check_pieces(last.data(), last.size(), first + whole / PIECE);
}

static void allocate(StreamFile& file, u64 bytes) {
    int error;
    {
        nb::gil_scoped_release release;
        error = file.file->allocate(bytes);
    }
    if (error == -ENOSPC)
        throw Error(Code::no_room, "there is no room for " + std::to_string(bytes) + " bytes in " + file.path + ": free some, or name a directory on another disk");
    if (error < 0) throw Error(Code::flash, "taking " + std::to_string(bytes) + " bytes for " + file.path + " failed: " + std::strerror(-error));
}

void bind_stream(nb::module_& m) {
    using free_gil = nb::call_guard<nb::gil_scoped_release>;

    m.attr("SECTOR") = SECTOR;
    m.attr("PIECE") = PIECE;
    m.def("check_padded", &check_padded, "address"_a, "nbytes"_a, "first"_a = 0, free_gil());
    nb::class_<StreamFile>(m, "StreamFile")
        .def(nb::new_([](int fd, std::string path) { return std::make_shared<StreamFile>(file_of(fd), std::move(path)); }), "fd"_a, "path"_a)
        .def_ro("path", &StreamFile::path)
        .def("allocate", &allocate, "nbytes"_a);
    nb::class_<StreamTicket>(m, "StreamTicket")
        .def_prop_ro("done", &StreamTicket::done)
        .def_prop_ro("check", &StreamTicket::check)
        .def("wait", &wait_for<StreamTicket>, "timeout_s"_a = -1.0);
    nb::class_<Streamer>(m, "Streamer")
        .def(
            "__init__",
            [](Streamer* at, nb::handle, u64 address, u64 bytes, u32 depth) { new (at) Streamer(reinterpret_cast<char*>(address), bytes, depth); },
            "owner"_a, "address"_a, "nbytes"_a, "depth"_a = Streamer::DEPTH, nb::keep_alive<1, 2>())
        .def(
            "read",
            [](Streamer& streamer, std::shared_ptr<StreamFile> file, u64 at, u64 offset, u64 bytes, std::string name, std::optional<u64> check, Tickets after) {
                return streamer.read(home_of(std::move(file), at), offset, bytes, std::move(name), check_of(check, false, 0), std::move(after));
            },
            "file"_a.none(), "at"_a, "offset"_a, "nbytes"_a, "name"_a = "", "check"_a = nb::none(), "after"_a = Tickets())
        .def(
            "write",
            [](Streamer& streamer, std::shared_ptr<StreamFile> file, u64 at, u64 offset, u64 bytes, std::string name, bool check, u64 first, Tickets after) {
                return streamer.write(home_of(std::move(file), at), offset, bytes, std::move(name), check_of({}, check, first), std::move(after));
            },
            "file"_a.none(), "at"_a, "offset"_a, "nbytes"_a, "name"_a = "", "check"_a = false, "first"_a = 0, "after"_a = Tickets())
        .def("counts",
             [](const Streamer& streamer) {
                 nb::dict all;
                 for (size_t lane = 0; lane < Streamer::LANES.size(); lane++) {
                     const LaneCounts counts = streamer.counts(lane);
                     all[Streamer::LANES[lane]] = nb::make_tuple(counts.requests, counts.bytes, double(counts.busy_ns) * 1e-9, counts.most);
                 }
                 return all;
             })
        .def("close", &Streamer::close, free_gil());
}

}  // namespace osf::bind
