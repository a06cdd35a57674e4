// The host's device for Python: addresses are integers, and whoever asks has checked them. Conversions only.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include "bind/wait.hpp"
#include "stream/device.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

// A range of an arena as a buffer. Views have it as their base: so they keep the arena, and what says that the range is taken.
struct DeviceRange {
    std::shared_ptr<DeviceArena> arena;
    u64 offset, bytes;
    nb::object taken;
};

static int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    DeviceRange* range = nb::inst_ptr<DeviceRange>(nb::handle(self));
    return PyBuffer_FillInfo(view, self, range->arena->data() + range->offset, Py_ssize_t(range->bytes), false, flags);
}
static PyType_Slot range_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

static DeviceRange range_of(std::shared_ptr<DeviceArena> arena, u64 offset, u64 bytes, nb::object taken) {
    if (offset > arena->bytes() || bytes > arena->bytes() - offset)
        throw Error(Code::bad_address, std::to_string(bytes) + " bytes at " + std::to_string(offset) + " reach beyond the arena of " +
                                           std::to_string(arena->bytes()) + " bytes");
    return {std::move(arena), offset, bytes, std::move(taken)};
}

void bind_device(nb::module_& m) {
    using free_gil = nb::call_guard<nb::gil_scoped_release>;

    nb::class_<DeviceRange>(m, "DeviceRange", nb::type_slots(range_slots));
    nb::class_<DeviceArena>(m, "DeviceArena", "Memory that is there, all of it, from the start.")
        .def(nb::init<u64>(), "nbytes"_a, free_gil())
        .def_prop_ro("address", [](const DeviceArena& arena) { return reinterpret_cast<u64>(arena.data()); })
        .def_prop_ro("nbytes", &DeviceArena::bytes)
        .def("range", &range_of, "offset"_a, "nbytes"_a, "taken"_a.none());
    nb::class_<Ticket>(m, "Ticket")
        .def_prop_ro("done", &Ticket::done)
        .def("wait", &wait_for<Ticket>, "timeout_s"_a = -1.0);
    nb::class_<CopyQueue>(m, "CopyQueue")
        .def(nb::init<>(), free_gil())
        .def(
            "copy",
            [](CopyQueue& queue, u64 to, u64 from, u64 bytes) {
                return queue.copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
            },
            "to"_a, "source"_a, "nbytes"_a)
        .def("mark", &CopyQueue::mark)
        .def("after", &CopyQueue::after, "ticket"_a)
        .def("close", &CopyQueue::close, free_gil());
}

}  // namespace osf::bind
