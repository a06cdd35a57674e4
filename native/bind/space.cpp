// Spaces, arrays and pins for Python; conversions only.
#include "bind/space.hpp"

#include "base/trusted.hpp"
#include "space/device.hpp"
#include "space/sync.hpp"
#include "tiers/client.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

static int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    Pin* pin = nb::inst_ptr<Pin>(nb::handle(self));
    if (pin->space->pager && !pin->resident) {
        try {
            pin->resident = keep_resident(pin->space, pin->bytes(), pin->record().nbytes);
        } catch (const Error& error) {
            set_error(error);
            return -1;
        }
    }
    return PyBuffer_FillInfo(view, self, pin->bytes(), Py_ssize_t(pin->record().nbytes), pin->space->read_only(), flags);
}
static PyType_Slot pin_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

static nb::tuple shape_of(const Pin& pin) {
    const Record& record = pin.record();
    return shape_tuple({reinterpret_cast<const u64*>(&record + 1), record.ndim});
}

// numpy's array type and its dtypes by number: made once by Python, used for every view.
static nb::object* ndarray_type = nullptr;
static std::vector<nb::object>* dtypes = nullptr;
// Some array has newer bytes on a device: views are made by Python, which looks. Here, so that it costs nothing otherwise.
static bool views_are_checked = false;

nb::tuple shape_tuple(std::span<const u64> shape) {
    nb::object result = nb::steal(PyTuple_New(Py_ssize_t(shape.size())));
    for (size_t at = 0; at < shape.size(); at++) PyTuple_SetItem(result.ptr(), Py_ssize_t(at), PyLong_FromUnsignedLongLong(shape[at]));
    return nb::borrow<nb::tuple>(result);
}

nb::object view_of(nb::handle owner, u16 code, std::span<const u64> sizes) {
    if (views_are_checked || code >= dtypes->size() || (*dtypes)[code].is_none()) return nb::none();
    nb::tuple shape = shape_tuple(sizes);
    PyObject* args[] = {nullptr, shape.ptr(), (*dtypes)[code].ptr(), owner.ptr()};
    PyObject* view = PyObject_Vectorcall(ndarray_type->ptr(), args + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    if (!view) throw nb::python_error();
    return nb::steal(view);
}

nb::object view_at(nb::handle owner, u16 code, nb::handle shape, u64 offset) {
    if (code >= dtypes->size() || (*dtypes)[code].is_none()) return nb::none();
    nb::object at = nb::steal(PyLong_FromUnsignedLongLong(offset));
    PyObject* args[] = {nullptr, shape.ptr(), (*dtypes)[code].ptr(), owner.ptr(), at.ptr()};
    PyObject* view = PyObject_Vectorcall(ndarray_type->ptr(), args + 1, 4 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    if (!view) throw nb::python_error();
    return nb::steal(view);
}

nb::list entry_list(const std::vector<Entry>& entries) {
    nb::list result;
    for (const Entry& entry : entries) {
        nb::object name = nb::steal(PyUnicode_DecodeUTF8(entry.name.data(), Py_ssize_t(entry.name.size()), "replace"));
        result.append(nb::make_tuple(name, entry.nbytes, entry.address, entry.dtype, entry.kind, shape_tuple(entry.shape), entry.descr));
    }
    return result;
}

nb::dict audit_dict(const Audit& found) {
    nb::dict result;
    result["arrays"] = found.arrays;
    result["bytes"] = found.bytes;
    result["leaked_blocks"] = found.leaked_blocks;
    result["leaked_bytes"] = found.leaked_bytes;
    result["missing_blocks"] = found.missing_blocks;
    result["damaged"] = found.damaged;
    return result;
}

nb::dict stats_dict(const Stats& stats) {
    nb::dict result;
    result["name"] = stats.name;
    result["base"] = stats.base;
    result["reserve"] = stats.reserve;
    result["created_ns"] = stats.created_ns;
    result["mode"] = stats.mode;
    result["page_size"] = stats.page_size;
    result["backing"] = stats.backing;
    result["data_address"] = stats.data_address;
    result["bytes"] = stats.bytes;
    result["free"] = stats.free;
    result["largest_free"] = stats.largest_free;
    result["limit"] = stats.limit;
    result["metadata_bytes"] = stats.metadata_bytes;
    result["arrays"] = stats.arrays;
    result["removed"] = stats.removed;
    result["read_only"] = stats.read_only;
    nb::list members;
    for (const MemberStats& member : stats.members) {
        nb::dict one;
        one["slot"] = member.slot;
        one["pid"] = member.pid;
        one["remote"] = member.remote;
        one["read_only"] = member.read_only;
        one["pins"] = member.pins;
        one["alive"] = member.alive;
        members.append(one);
    }
    result["members"] = members;
    return result;
}

void refuse_pickle(nb::handle) {
    throw Error(Code::bad_input, "spaces and what is in them cannot be pickled or copied: send the name (or the address), and open the space there");
}

static void set_numpy(nb::object type, nb::list by_code) {
    ndarray_type = new nb::object(type);
    dtypes = new std::vector<nb::object>;
    for (nb::handle dtype : by_code) dtypes->push_back(nb::borrow(dtype));
}

static nb::object numpy_view(nb::handle self) {
    const Pin& pin = *nb::inst_ptr<Pin>(self);
    const Record& record = pin.record();
    return view_of(self, record.dtype, {reinterpret_cast<const u64*>(&record + 1), record.ndim});
}

static Pin hand_out(const std::shared_ptr<Space>& space, Held held) {
    space->hand_out(held);
    return Pin(space, held);
}

static Spec make_spec(u64 nbytes, u16 dtype, u8 kind, std::vector<u64> shape, std::string descr, std::string name) {
    return {nbytes, dtype, kind, std::move(shape), std::move(descr), std::move(name)};
}

static Pin make(std::shared_ptr<Space> space, u64 nbytes, u16 dtype, u8 kind, std::vector<u64> shape, std::string descr,
                std::string name, bool zero) {
    Spec spec = make_spec(nbytes, dtype, kind, std::move(shape), std::move(descr), std::move(name));
    Held held;
    {
        nb::gil_scoped_release release;
        held = space->make(spec, zero);
    }
    return hand_out(space, held);
}

// source: an address, or an object with a contiguous buffer
static Pin put(std::shared_ptr<Space> space, nb::handle source, u64 nbytes, u16 dtype, u8 kind, std::vector<u64> shape,
               std::string descr, std::string name, bool replace) {
    Py_buffer buffer{};
    const void* from;
    if (PyLong_Check(source.ptr())) {
        from = reinterpret_cast<const void*>(PyLong_AsUnsignedLongLong(source.ptr()));
    } else {
        if (PyObject_GetBuffer(source.ptr(), &buffer, PyBUF_SIMPLE) < 0) throw nb::python_error();
        from = buffer.buf;
        if (u64(buffer.len) != nbytes) {
            PyBuffer_Release(&buffer);
            throw Error(Code::bad_input, "the buffer does not have the array's size");
        }
    }
    Held held;
    try {
        Spec spec = make_spec(nbytes, dtype, kind, std::move(shape), std::move(descr), std::move(name));
        auto work = [&] {
            held = space->make(spec, false);
            space->write(held, from, nbytes);
            if (!spec.name.empty()) space->publish(held, replace);
        };
        if (nbytes < 64 * KIB) {
            work();
        } else {
            nb::gil_scoped_release release;
            work();
        }
    } catch (...) {
        if (buffer.obj) PyBuffer_Release(&buffer);
        if (held) space->release(held);
        throw;
    }
    if (buffer.obj) PyBuffer_Release(&buffer);
    return hand_out(space, held);
}

static std::optional<Pin> find(std::shared_ptr<Space> space, std::string_view name) {
    Held held = space->find(name);
    if (!held) return std::nullopt;
    return Pin(std::move(space), held);
}

static nb::list list(Space& space, std::string_view prefix) {
    std::vector<Entry> entries;
    {
        nb::gil_scoped_release release;
        entries = space.list(prefix);
    }
    return entry_list(entries);
}

static const Held& own(Space& space, const Pin& pin) {
    if (pin.space.get() != &space) throw Error(Code::bad_input, "the array belongs to another space");
    return pin.held;
}

// For benchmarks: seconds per look-up (find, pin, release) of the given names, in C++.
static double time_lookups(Space& space, const std::vector<std::string>& names, u32 rounds) {
    nb::gil_scoped_release release;
    u64 missing = 0, start = now_ns();
    for (u32 round = 0; round < rounds; round++) {
        for (const std::string& name : names) {
            Held held = space.find(name);
            if (held) space.release(held);
            else missing++;
        }
    }
    u64 spent = now_ns() - start;
    if (missing) throw Error(Code::unknown_name, std::to_string(missing) + " of the names are not there");
    return double(spent) * 1e-9 / double(rounds * std::max<u64>(1, names.size()));
}

void bind_space(nb::module_& m) {
    nb::class_<Pin>(m, "Pin", nb::type_slots(pin_slots))
        .def_prop_ro("address", [](const Pin& pin) { return u64(pin.bytes()); })
        .def_prop_ro("nbytes", [](const Pin& pin) { return pin.record().nbytes; })
        .def_prop_ro("dtype", [](const Pin& pin) { return pin.record().dtype; })
        .def_prop_ro("kind", [](const Pin& pin) { return pin.record().kind; })
        .def_prop_ro("descr", [](const Pin& pin) { return pin.space->descr_of(pin.held); })
        .def("__reduce__", refuse_pickle)
        .def("numpy", numpy_view)
        .def_prop_ro("shape", shape_of)
        .def_prop_ro("name", [](const Pin& pin) { return pin.space->name_of(pin.held); })
        .def_prop_ro("state", [](const Pin& pin) { return state_number(load(pin.record().state)); });

    nb::class_<Space>(m, "Core")
        .def("__reduce__", refuse_pickle)
        .def_static("create", [](std::string directory, std::string name, std::string boot_id, std::string backing, u64 nbytes,
                                 u64 base, u64 reserve, u64 page_size, u32 mode, bool device, bool tiers) {
                 nb::gil_scoped_release release;
                 Space::create({directory, name, boot_id, backing, nbytes, base, reserve, page_size, mode, device, tiers});
             }, "directory"_a, "name"_a, "boot_id"_a, "backing"_a, "nbytes"_a, "base"_a, "reserve"_a, "page_size"_a, "mode"_a, "device"_a = false,
             "tiers"_a = false)
        .def_static("open", [](std::string directory, bool read_only, std::string boot_id) {
                 nb::gil_scoped_release release;
                 return Space::open(directory, read_only, boot_id);
             }, "directory"_a, "read_only"_a, "boot_id"_a)
        .def("make", make, "nbytes"_a, "dtype"_a, "kind"_a, "shape"_a, "descr"_a, "name"_a, "zero"_a)
        .def("put", put, "source"_a, "nbytes"_a, "dtype"_a, "kind"_a, "shape"_a, "descr"_a, "name"_a, "replace"_a)
        .def("publish", [](Space& space, const Pin& pin, bool replace) { nb::gil_scoped_release release; space.publish(own(space, pin), replace); })
        .def("name", [](Space& space, const Pin& pin, std::string_view name) { nb::gil_scoped_release release; space.name(own(space, pin), name); })
        .def("find", find)
        .def("at", [](std::shared_ptr<Space> space, u64 address) { Held held = space->at(address); return Pin(std::move(space), held); })
        .def("contains", [](Space& space, std::string_view name) {
                 Held held = space.find(name);
                 if (held) space.release(held);
                 return bool(held);
             })
        .def("remove", [](Space& space, std::string_view name, const Pin* only) {
                 nb::gil_scoped_release release;
                 return only ? space.remove(name, only->held.record) : space.remove(name, 0, true);
             }, "name"_a, "only"_a.none() = nb::none())
        .def("rename", [](Space& space, std::string_view from, std::string_view to) { nb::gil_scoped_release release; space.rename(from, to); })
        .def("list", list)
        .def("grow", [](Space& space, u64 nbytes) { nb::gil_scoped_release release; space.grow(nbytes); })
        .def("collect", [](Space& space) { nb::gil_scoped_release release; space.check_usable(); space.collect(); })
        .def("audit", [](Space& space) {
                 Audit found;
                 {
                     nb::gil_scoped_release release;
                     found = space.audit();
                 }
                 return audit_dict(found);
             })
        .def("stats", [](const Space& space) { return stats_dict(space.stats()); })
        .def("check_usable", &Space::check_usable)
        .def_prop_ro("tiered", &Space::tiered)
        .def_prop_ro("tiers", [](const Space& space) { return std::static_pointer_cast<TierClient>(space.pager); })
        .def_prop_ro("directory", [](const Space& space) { return space.directory(); })
        .def("time_lookups", time_lookups, "names"_a, "rounds"_a);

    m.def("space_id", space_id);
    m.def("read_header", [](const std::string& directory) {
        Header header = read_header(directory);
        return nb::make_tuple(std::string(header.name), header.base, header.reserve, header.created_ns, header.page_size, std::string(header.boot_id), std::string(header.backing), header.made);
    });
    m.def("mark_removed", mark_removed);
    m.def("release_device", release_device);
    m.def("free_device", [](const std::string& path, const std::string& boot_id) {
        const Descriptor device(open_device(path));
        free_device(label_place(device.fd), path, boot_id);
    });
    m.def("live_members", live_members, "directory"_a, "remote"_a = true);
    m.def("set_numpy", set_numpy);
    m.def("check_views", [](bool on) { views_are_checked = on; });
    m.def("set_recovery", [](bool on) { recovery = on; });
    m.attr("SMALLEST_RESERVE") = Layout::smallest_reserve();
    m.attr("VERSION") = VERSION;
}

}  // namespace osf::bind
