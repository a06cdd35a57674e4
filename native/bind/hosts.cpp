// The keeper and a process's attachment to it, for Python; conversions only.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <sstream>

#include "coherence/host_client.hpp"
#include "coherence/host_keeper.hpp"
#include "base/log.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

static const char* name_of(Faults faults) { return faults == Faults::full ? "full" : faults == Faults::user ? "user" : "none"; }

static long nanoseconds(double timeout_s) { return timeout_s < 0 ? -1 : long(std::min(timeout_s, 1e9) * 1e9); }

// Waits in slices, so that Ctrl-C is heard.
static bool wait(Attachment& attachment, u64 id, double timeout_s) {
    constexpr long SLICE = 100'000'000;
    long left = nanoseconds(timeout_s);
    for (;;) {
        long slice = left < 0 ? SLICE : std::min(left, SLICE);
        bool done;
        {
            nb::gil_scoped_release release;
            done = attachment.wait(id, slice);
        }
        if (done) return true;
        if (PyErr_CheckSignals() < 0) throw nb::python_error();
        if (left >= 0 && (left -= slice) <= 0) return false;
    }
}

static nb::list status(Attachment& attachment) {
    std::string text;
    {
        nb::gil_scoped_release release;
        text = attachment.status();
    }
    nb::list result;
    std::istringstream lines(text);
    u64 number, up, lost, unit, round_trip, misses, recalls, invalidations, in, out, shared_units, modified_units;
    for (std::string host; lines >> number >> host >> up >> lost >> unit >> round_trip >> misses >> recalls >> invalidations >> in >> out >>
                           shared_units >> modified_units;) {
        nb::dict one;
        one["number"] = number;
        one["host"] = host;
        one["up"] = up != 0;
        one["lost"] = lost != 0;
        one["unit"] = unit;
        one["round_trip_us"] = double(round_trip) / 1e3;
        one["misses"] = misses;
        one["recalls"] = recalls;
        one["invalidations"] = invalidations;
        one["bytes_in"] = in;
        one["bytes_out"] = out;
        one["shared_units"] = shared_units;
        one["modified_units"] = modified_units;
        result.append(one);
    }
    return result;
}

void bind_hosts(nb::module_& m) {
    nb::class_<Attachment>(m, "Attachment")
        .def_prop_ro("faults", [](const Attachment& attachment) { return name_of(attachment.faults()); })
        .def("prefetch", [](Attachment& attachment, u64 address, u64 nbytes, bool write) { return attachment.prefetch(address, nbytes, write); })
        .def("wait", wait)
        .def("done", &Attachment::done)
        .def("states", [](const Attachment& attachment, u64 address, u64 nbytes) {
                 auto states = attachment.states(address, nbytes);
                 return nb::make_tuple(states.invalid, states.shared, states.modified);
             })
        .def("owners", [](const Attachment& attachment, u64 address, u64 nbytes) {
                 std::string words = attachment.owners(address, nbytes);
                 return nb::bytes(words.data(), words.size());
             })
        .def("status", status)
        .def("name_host", &Attachment::name_host, "number"_a, "host"_a)
        .def_prop_ro("epoch", &Attachment::epoch)
        .def_prop_ro("term", &Attachment::term);
    nb::class_<Roster>(m, "Roster")
        .def(nb::new_([](std::vector<std::string> hosts, u64 realm) {
                 if (hosts.empty() || hosts.size() > MAX_HOSTS) throw Error(Code::bad_input, "a space has 1 to " + std::to_string(MAX_HOSTS) + " hosts");
                 return std::make_shared<Roster>(std::move(hosts), realm);
             }), "hosts"_a, "realm"_a = 0)
        .def("change", &Roster::change, "hosts"_a, "terms"_a, "epoch"_a)
        .def("ask_for", &Roster::ask_for, "epoch"_a)
        .def("asked", &Roster::asked)
        .def("admits", &Roster::admits, "number"_a, "term"_a)
        .def_prop_ro("epoch", &Roster::epoch);
    m.def("attach", [](std::shared_ptr<Space> space, std::string socket, std::vector<std::string> hosts, u32 own, u32 unit,
                       std::vector<std::string> keeper_argv) {
              nb::gil_scoped_release release;
              return attach(space, {socket, hosts, own, unit, keeper_argv});
          }, "core"_a, "sock"_a, "hosts"_a, "own"_a, "unit"_a, "keeper_argv"_a);
    m.def("close_space", [](std::string socket, std::string directory, u64 id) {
              nb::gil_scoped_release release;
              close_space(socket, directory, id);
          });
    m.def("bound_log", bound_log);
    m.def("keeper_run", [](std::string root, std::shared_ptr<Roster> roster, u32 own, nb::bytes key, double linger, std::string boot_id, std::string only) {
              KeeperOptions options{root, std::move(roster), own, std::move(only), {}, linger, boot_id};
              if (key.size() != sizeof options.key.bytes) throw Error(Code::bad_input, "a key has 32 bytes");
              std::memcpy(options.key.bytes, key.data(), key.size());
              nb::gil_scoped_release release;
              keeper_run(options);
          }, "root"_a, "roster"_a, "own"_a, "key"_a, "linger"_a, "boot_id"_a, "only"_a = "");
    m.def("hosts_hash", hosts_hash);
    m.def("why_no_faults", [] { return abilities().why; });
}

}  // namespace osf::bind
