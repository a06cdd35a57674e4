// Atomics, locks, barriers and channels of other hosts for Python, under the names that bind/sync.cpp gives those of this one.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "bind/remote.hpp"
#include "space/sync.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

template <class T>
static void bind_width(nb::module_& m, const std::string& suffix) {
    auto bits = [](T value) { return u64(std::make_unsigned_t<T>(value)); };
    auto apply = [](const RemotePin& pin, u64 offset, Verb verb, u64 a, u64 b) {
        nb::gil_scoped_release release;
        auto [done, value] = pin.remote->atomic(pin.array, offset, verb, sizeof(T), a, b);
        return std::pair<bool, T>(done, T(value));
    };
    m.def(("load" + suffix).c_str(), [=](const RemotePin& pin, u64 offset) { return apply(pin, offset, Verb::load, 0, 0).second; });
    m.def(("store" + suffix).c_str(), [=](const RemotePin& pin, u64 offset, T value) { apply(pin, offset, Verb::store, bits(value), 0); });
    m.def(("add" + suffix).c_str(), [=](const RemotePin& pin, u64 offset, T value) { return apply(pin, offset, Verb::add, bits(value), 0).second; });
    m.def(("exchange" + suffix).c_str(), [=](const RemotePin& pin, u64 offset, T value) { return apply(pin, offset, Verb::exchange, bits(value), 0).second; });
    m.def(("cas" + suffix).c_str(), [=](const RemotePin& pin, u64 offset, T expected, T desired) {
        return apply(pin, offset, Verb::cas, bits(expected), bits(desired));
    });
}

static long nanoseconds(double timeout_s) { return timeout_s < 0 || !(timeout_s < 1e9) ? -1 : long(timeout_s * 1e9); }

// A call that may wait. Ctrl-C makes the home stop waiting; if what was waited for came all the same, `undo` gives it back, or
// returns false to have it in spite of that.
template <class Work, class Undo>
static auto waiting(Work work, Undo undo) {
    auto ctrl_c = [] {
        nb::gil_scoped_acquire acquire;
        return PyErr_CheckSignals() < 0;
    };
    try {
        auto result = [&] {
            nb::gil_scoped_release release;
            return work(ctrl_c);
        }();
        if (PyErr_Occurred()) {
            nb::python_error interrupt;
            if (undo(result, interrupt)) throw interrupt;
        }
        return result;
    } catch (const Error&) {
        if (PyErr_Occurred()) throw nb::python_error();
        throw;
    }
}
template <class Work>
static auto waiting(Work work) { return waiting(work, [](auto&, nb::python_error&) { return true; }); }

template <class Work>
static auto freely(Work work) {
    nb::gil_scoped_release release;
    return work();
}

void bind_remote_sync(nb::module_& m) {
    bind_width<std::int32_t>(m, "_i4");
    bind_width<u32>(m, "_u4");
    bind_width<std::int64_t>(m, "_i8");
    bind_width<u64>(m, "_u8");
    m.def("wait_word", [](const RemotePin& pin, u64 offset, u32 expected, double timeout_s) {
        return waiting([&](auto& ctrl_c) { return pin.remote->wait_word(pin.array, offset, expected, nanoseconds(timeout_s), ctrl_c); });
    });
    m.def("wake_word", [](const RemotePin& pin, u64 offset, int count) { return freely([&] { return pin.remote->wake_word(pin.array, offset, count); }); });

    m.def("lock_take", [](const RemotePin& pin, double timeout_s) -> std::optional<bool> {  // died?, or None: timed out
        Grant grant = waiting([&](auto& ctrl_c) { return pin.remote->lock_take(pin.array, nanoseconds(timeout_s), ctrl_c); },
                              [&](Grant got, nb::python_error&) {
                                  if (got != Grant::timed_out) freely([&] { return pin.remote->lock_drop(pin.array); });
                                  return true;
                              });
        if (grant == Grant::timed_out) return std::nullopt;
        return grant == Grant::owner_died;
    });
    m.def("lock_drop", [](const RemotePin& pin) { return freely([&] { return pin.remote->lock_drop(pin.array); }); });
    m.def("lock_owned", [](const RemotePin& pin) { return freely([&] { return pin.remote->lock_owned(pin.array); }); });

    m.def("barrier_init", [](const RemotePin& pin, u32 parties) { freely([&] { pin.remote->barrier_init(pin.array, parties); }); });
    m.def("barrier_parties", [](const RemotePin& pin) { return freely([&] { return pin.remote->barrier_facts(pin.array).first; }); });
    m.def("barrier_broken", [](const RemotePin& pin) { return freely([&] { return pin.remote->barrier_facts(pin.array).second; }); });
    m.def("barrier_wait", [](const RemotePin& pin, double timeout_s) {
        return waiting([&](auto& ctrl_c) { return pin.remote->barrier_wait(pin.array, nanoseconds(timeout_s), ctrl_c); });
    });
    m.def("barrier_reset", [](const RemotePin& pin) { freely([&] { pin.remote->barrier_reset(pin.array); }); });

    m.def("channel_init", [](const RemotePin& pin, u32 capacity, u32 slot_bytes) { freely([&] { pin.remote->channel_init(pin.array, capacity, slot_bytes); }); });
    auto facts = [](const RemotePin& pin) { return freely([&] { return pin.remote->channel_facts(pin.array); }); };
    m.def("channel_facts", [=](const RemotePin& pin) {
        ChannelFacts known = facts(pin);
        return std::pair<u32, u32>(known.capacity, known.slot_bytes - u32(sizeof(Slot)));
    });
    m.def("channel_length", [=](const RemotePin& pin) { return facts(pin).length; });
    m.def("channel_deleted", [=](const RemotePin& pin) { return facts(pin).deleted != 0; });
    m.def("channel_send", [](const RemotePin& pin, nb::bytes bytes, nb::object array, double timeout_s) {
        std::string_view view(bytes.c_str(), bytes.size());
        const RemotePin* other = nullptr;
        if (!array.is_none() && (!nb::try_cast<const RemotePin*>(array, other) || other->remote != pin.remote))
            throw Error(Code::bad_input, "the array is not on the channel's host, " + pin.remote->peer().label() + "; put() it there first");
        return waiting([&](auto& ctrl_c) { return pin.remote->channel_send(pin.array, view, other ? &other->array : nullptr, nanoseconds(timeout_s), ctrl_c); });
    }, "pin"_a, "message"_a, "array"_a.none(), "timeout_s"_a);
    m.def("channel_receive", [](const RemotePin& pin, double timeout_s) -> nb::object {
        RemoteMessage message;
        bool got = waiting([&](auto& ctrl_c) { return pin.remote->channel_receive(pin.array, message, nanoseconds(timeout_s), ctrl_c); },
                           [&](bool& taken, nb::python_error& interrupt) {
                               // The message would be lost: it is returned, and Ctrl-C is heard right after.
                               if (!taken || !interrupt.matches(PyExc_KeyboardInterrupt)) return true;
                               PyErr_SetInterrupt();
                               return false;
                           });
        if (!got) return nb::none();
        nb::object array = nb::none();
        if (message.array) array = nb::cast(RemotePin(pin.remote, std::move(*message.array)));
        return nb::make_tuple(message.kind, nb::bytes(message.bytes.data(), message.bytes.size()), array);
    });
    m.def("channel_discard", [](const RemotePin& pin) { freely([&] { pin.remote->channel_discard(pin.array); }); });
}

}  // namespace osf::bind
