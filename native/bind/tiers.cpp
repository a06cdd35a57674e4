// Spaces with a flash tier for Python; conversions only.
#include "bind/space.hpp"
#include "engine/keeper.hpp"

#include "tiers/flash.hpp"
#include "tiers/journal.hpp"
#include "tiers/client.hpp"
#include "tiers/durable.hpp"
#include "tiers/replay.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

std::shared_ptr<void> keep_resident(const std::shared_ptr<Space>& space, char* at, u64 bytes) {
    auto tiers = std::static_pointer_cast<TierClient>(space->pager);
    if (!tiers || !tiers->plain() || !bytes) return nullptr;
    nb::gil_scoped_release release;
    const u64 id = tiers->ask(Want::pin, at, bytes, 1 << 20);
    tiers->wait(id, -1);
    return {reinterpret_cast<void*>(id), [space, tiers](void* number) { tiers->unpin(u64(number)); }};
}

// A range of an array as a buffer of its own: without faults only that much need be in memory.
struct Range {
    std::shared_ptr<Space> space;
    nb::object pin;
    char* at;
    u64 bytes;
    std::shared_ptr<void> resident;
};

static int get_range(PyObject* self, Py_buffer* view, int flags) {
    Range* range = nb::inst_ptr<Range>(nb::handle(self));
    return PyBuffer_FillInfo(view, self, range->at, Py_ssize_t(range->bytes), range->space->read_only(), flags);
}
static PyType_Slot range_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_range)}, {0, nullptr}};

// What the file `tiers` says, for people: nothing here waits for the keeper, or is told to it.
static nb::dict counts_dict(const TierWords& words) {
    const TiersHead& head = words.head();
    const TierCounts& counts = head.counts;
    u64 flash = 0, empty = 0;
    for (u64 unit = 0; unit < head.units; unit++) {
        const Tier tier = words.tier(unit);
        flash += tier == Tier::flash;
        empty += tier == Tier::empty;
    }
    nb::dict result;
    auto put = [&](const char* name, u64 value) { result[name] = value; };
    put("unit_bytes", UNIT);
    put("capacity", head.units * UNIT);
    put("dram_budget", head.capacity * UNIT);
    put("dram_bytes", load(head.resident) * UNIT);
    put("vacant_bytes", load(head.vacant) * UNIT);
    put("pinned_bytes", load(head.pinned) * UNIT);
    put("dirty_bytes", load(head.dirty) * UNIT);
    put("flash_bytes", flash * UNIT);
    put("empty_bytes", empty * UNIT);
    put("keeper", load(head.keeper));
    put("faults", load(counts.faults));
    put("faults_in_dram", load(counts.minor_faults));
    put("wait_ns", load(counts.wait_ns));
    put("asked_units", load(counts.asked));
    put("asked_in_dram", load(counts.asked_there));
    put("read_bytes", load(counts.read_bytes));
    put("written_bytes", load(counts.written_bytes));
    put("dropped_bytes", load(counts.dropped_bytes));
    put("read_ns", load(counts.read_ns));
    put("written_ns", load(counts.written_ns));
    put("armed", load(counts.armed));
    put("armed_touched", load(counts.armed_touched));
    put("read_ahead_bytes", load(counts.ahead_units) * UNIT);
    put("errors", load(counts.errors));
    put("commits", load(counts.commits));
    result["trouble"] = std::string(head.trouble, strnlen(head.trouble, sizeof head.trouble));
    result["durable"] = head.durable != 0;
    nb::list files;
    for (auto& path : words.files()) files.append(path);
    result["files"] = files;
    return result;
}

using Numbers = nb::ndarray<const u64, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void bind_tiers(nb::module_& m) {
    nb::class_<TierClient>(m, "Tiers")
        .def("__reduce__", refuse_pickle)
        .def_prop_ro("faults", [](const TierClient& tiers) {
                 return std::string(tiers.faults() == Faults::full ? "full" : tiers.faults() == Faults::user ? "user" : "none");
             })
        .def("ask", [](TierClient& tiers, u32 want, u64 address, u64 nbytes, int priority) {
                 return tiers.ask(Want(want), reinterpret_cast<void*>(address), nbytes, priority);
             }, "want"_a, "address"_a, "nbytes"_a, "priority"_a = 0)
        .def("ask_many", [](TierClient& tiers, Numbers addresses, Numbers sizes, int priority) {
                 if (addresses.size() != sizes.size()) throw Error(Code::bad_input, "every address has a size");
                 return tiers.ask_many(addresses.data(), sizes.data(), addresses.size(), priority);
             }, "addresses"_a, "sizes"_a, "priority"_a = 0)
        .def("wait", [](TierClient& tiers, u64 id, double timeout_s) {
                 nb::gil_scoped_release release;
                 return tiers.wait(id, timeout_s < 0 ? -1 : long(std::min(timeout_s, 9e9) * 1e9));
             })
        .def("done", &TierClient::done)
        .def("cancel", &TierClient::cancel)
        .def("reorder", &TierClient::reorder)
        .def("unpin", &TierClient::unpin)
        .def("tiers", [](const TierClient& tiers, u64 address, u64 nbytes) {
                 auto counts = tiers.tiers(reinterpret_cast<void*>(address), nbytes);
                 return nb::make_tuple(counts.dram, counts.flash, counts.empty);
             })
        .def("counts", [](TierClient& tiers) { return counts_dict(tiers.words()); })
        .def("within", [](TierClient& tiers, u64 address, u64 ours, u64 nbytes, bool write) {
                 nb::gil_scoped_release release;
                 tiers.within(reinterpret_cast<char*>(address), nbytes, [&](char* part, u64 size) {
                     char* other = reinterpret_cast<char*>(ours + (u64(part) - address));
                     std::memcpy(write ? part : other, write ? other : part, size);
                 });
             }, "address"_a, "buffer"_a, "nbytes"_a, "write"_a);

    nb::class_<Range>(m, "Range", nb::type_slots(range_slots)).def("__reduce__", refuse_pickle);
    m.def("range_of", [](nb::object pin, u64 offset, u64 nbytes) {
        const Pin& of = nb::cast<const Pin&>(pin);
        if (offset + nbytes > of.record().nbytes) throw Error(Code::bad_address, "the range is outside the array");
        char* at = of.bytes() + offset;
        return Range{of.space, pin, at, nbytes, keep_resident(of.space, at, nbytes)};
    });
    m.def("make_tiers", [](const std::string& directory, u64 units, u64 capacity, u64 slots, std::vector<std::string> files, bool durable, u64 id, u32 mode) {
        nb::gil_scoped_release release;
        TierWords::create(directory, {units, capacity, slots, files, durable, id}, mode);
        Flash::create(real_disk(), files, slots, id);
        if (!durable) return;
        Journal journal(real_disk(), journal_path(files[0], id));
        journal.create();
    });
    // The files of a space that is being taken away; or whose making came to no end: then not what was flushed before it began.
    m.def("remove_flash", [](const std::string& directory, bool unfinished) {
        nb::gil_scoped_release release;
        TierWords words(directory, false);
        const std::string path = journal_path(words.files()[0], words.head().id);
        Journal journal(real_disk(), path);
        if (unfinished && words.head().durable && Journal::exists(real_disk(), path)) {
            journal.recover();
            if (journal.generation()) return;
        }
        Flash::remove(real_disk(), words.files(), words.head().id);
        if (words.head().durable) journal.remove();
    });
    m.def("durable_at", [](const std::string& path) { return durable_at(real_disk(), path); });
    m.def("durable_geometry", [](const std::string& path) {
        Restored is = durable_geometry(real_disk(), path);
        return nb::make_tuple(is.base, is.reserve, is.units, is.slots);
    });
    m.def("restore_space", [](const std::string& directory, const std::string& name, const std::string& boot_id, const std::string& backing,
                              std::vector<std::string> files, u64 capacity) {
        nb::gil_scoped_release release;
        restore_space(real_disk(), directory, name, boot_id, backing, files, capacity);
    });
    m.def("tier_counts", [](const std::string& directory) { return counts_dict(TierWords(directory, false)); });
    m.def("attach_tiers", [](std::shared_ptr<Space> space, std::string socket, std::vector<std::string> keeper, bool faults) {
        nb::gil_scoped_release release;
        return attach_tiers(space, {socket, keeper, faults});
    });
    m.def("tier_keeper_run", [](const std::string& directory, const std::string& boot_id, double linger_s) {
        nb::gil_scoped_release release;
        tier_keeper_run(directory, boot_id, linger_s);
    });
    m.def(
        "replay_tier_policy",
        [](u64 units, u64 capacity, nb::ndarray<const u32, nb::ndim<1>, nb::c_contig, nb::device::cpu> trace) {
            TierReplay replay;
            {
                nb::gil_scoped_release release;
                replay = replay_tier_policy(units, capacity, {trace.data(), trace.size()});
            }
            return nb::make_tuple(replay.hits, replay.misses, replay.armed, replay.armed_touches);
        },
        "units"_a, "capacity"_a, "trace"_a,
        "Uses of units, in order, through the policy: hits, misses, units armed, and touches of armed units.");
    m.attr("UNIT") = UNIT;
}

}  // namespace osf::bind
