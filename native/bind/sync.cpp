// Atomics, locks, barriers and channels for Python; conversions only.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "bind/space.hpp"
#include "space/sync.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

static void need_write(const Pin& pin) {
    if (pin.space->read_only())
        throw Error(Code::not_permitted, std::string("the space '") + pin.space->header().name + "' is open read-only (mode=\"r\")");
}

// To wait for others one must be a member, of a space that is still there.
static void need_member(const Pin& pin) {
    need_write(pin);
    pin.space->check_usable();
}

// A word of an array. The offset is checked here: it comes from Python.
template <class T>
static T& word_at(const Pin& pin, u64 offset, bool write) {
    if (write) need_write(pin);
    char* at = pin.bytes() + offset;
    if (offset > pin.record().nbytes || pin.record().nbytes - offset < sizeof(T) || u64(at) % sizeof(T))
        throw Error(Code::bad_address, "an atomic needs an aligned word of " + std::to_string(sizeof(T)) + " bytes inside the array; offset " +
                                           std::to_string(offset) + " of " + std::to_string(pin.record().nbytes) + " bytes is none");
    return *reinterpret_cast<T*>(at);
}

template <class T>
static void bind_width(nb::module_& m, const std::string& suffix) {
    m.def(("load" + suffix).c_str(), [](const Pin& pin, u64 offset) { return load(word_at<T>(pin, offset, false)); });
    m.def(("store" + suffix).c_str(), [](const Pin& pin, u64 offset, T value) { store(word_at<T>(pin, offset, true), value, std::memory_order_seq_cst); });
    m.def(("add" + suffix).c_str(), [](const Pin& pin, u64 offset, T value) { return std::atomic_ref<T>(word_at<T>(pin, offset, true)).fetch_add(value); });
    m.def(("exchange" + suffix).c_str(), [](const Pin& pin, u64 offset, T value) { return swap(word_at<T>(pin, offset, true), value); });
    m.def(("cas" + suffix).c_str(), [](const Pin& pin, u64 offset, T expected, T desired) {
        bool done = std::atomic_ref<T>(word_at<T>(pin, offset, true)).compare_exchange_strong(expected, desired);
        return std::pair<bool, T>(done, expected);
    });
}

// Waits in slices, so that Ctrl-C is heard. `once` returns whether it is done; it is called without the GIL.
template <class Once>
static bool wait_in_slices(const Pin& pin, double timeout_s, Once once) {
    if (!(timeout_s < 1e9)) timeout_s = -1;  // thirty years are for ever
    const u64 start = now_ns();
    for (;;) {
        long slice = 100'000'000;
        bool last = false;
        if (timeout_s >= 0) {
            long left = long(timeout_s * 1e9) - long(now_ns() - start);
            last = left <= slice;
            slice = std::max(0l, std::min(slice, left));
        }
        {
            nb::gil_scoped_release release;
            if (once(slice)) return true;
        }
        if (last) return false;
        pin.space->check_usable();
        if (PyErr_CheckSignals() < 0) throw nb::python_error();
    }
}

static Lock& lock_at(const Pin& pin) { return *reinterpret_cast<Lock*>(pin.bytes()); }
static Barrier& barrier_at(const Pin& pin) { return *reinterpret_cast<Barrier*>(pin.bytes()); }
static Channel& channel_at(const Pin& pin) { return *reinterpret_cast<Channel*>(pin.bytes()); }

static bool owns(const Pin& pin) {
    u32 id = pin.space->members.id();
    return id && (load(lock_at(pin).word) & ~WAITERS) == id;
}

void bind_sync(nb::module_& m) {
    bind_width<std::int32_t>(m, "_i4");
    bind_width<u32>(m, "_u4");
    bind_width<std::int64_t>(m, "_i8");
    bind_width<u64>(m, "_u8");
    m.def("wait_word", [](const Pin& pin, u64 offset, u32 expected, double timeout_s) {
        u32& word = word_at<u32>(pin, offset, false);
        return wait_in_slices(pin, timeout_s, [&](long slice) {
            if (load(word) != expected) return true;
            futex_wait(word, expected, slice);
            return load(word) != expected;
        });
    });
    m.def("wake_word", [](const Pin& pin, u64 offset, int count) { return futex_wake(word_at<u32>(pin, offset, false), count); });

    m.def("lock_take", [](const Pin& pin, double timeout_s) -> std::optional<bool> {  // died?, or None: timed out
        need_member(pin);
        Grant grant = Grant::timed_out;
        bool taken = wait_in_slices(pin, timeout_s, [&](long slice) {
            grant = lock_take(lock_at(pin), pin.space->members, slice);
            return grant != Grant::timed_out;
        });
        if (!taken) return std::nullopt;
        return grant == Grant::owner_died;
    });
    m.def("lock_drop", [](const Pin& pin) {
        need_write(pin);
        if (!owns(pin)) return false;
        lock_drop(lock_at(pin));
        return true;
    });
    m.def("lock_owned", owns);

    m.def("barrier_bytes", barrier_bytes);
    m.def("barrier_init", [](const Pin& pin, u32 parties) { barrier_at(pin).parties = parties; });
    m.def("barrier_parties", [](const Pin& pin) { return barrier_at(pin).parties; });
    m.def("barrier_broken", [](const Pin& pin) { return load(barrier_at(pin).broken) != 0; });
    m.def("barrier_wait", [](const Pin& pin, double timeout_s) {
        need_member(pin);
        auto ctrl_c = [] {
            nb::gil_scoped_acquire acquire;
            return PyErr_CheckSignals() < 0;
        };
        u32 place = 0;
        try {
            nb::gil_scoped_release release;
            place = barrier_wait(barrier_at(pin), pin.space->members, timeout_s < 0 || !(timeout_s < 1e9) ? -1 : long(timeout_s * 1e9), ctrl_c);
        } catch (const Error&) {
            if (PyErr_Occurred()) throw nb::python_error();
            throw;
        }
        if (PyErr_Occurred()) throw nb::python_error();  // everybody came and Ctrl-C was pressed, in one tick
        return place;
    });
    m.def("barrier_reset", [](const Pin& pin) { need_member(pin); barrier_reset(barrier_at(pin), pin.space->members); });

    m.def("channel_bytes", [](u32 capacity, u32 message_bytes) {
        u32 slot = u32(align_up(message_bytes + sizeof(Slot), 16));
        return std::pair<u64, u32>(channel_bytes(capacity, slot), slot);
    });
    m.def("channel_init", [](const Pin& pin, u32 capacity, u32 slot_bytes) {
        channel_at(pin).capacity = capacity;
        channel_at(pin).slot_bytes = slot_bytes;
    });
    m.def("channel_facts", [](const Pin& pin) {
        return std::pair<u32, u32>(channel_at(pin).capacity, channel_at(pin).slot_bytes - u32(sizeof(Slot)));
    });
    m.def("channel_send", [](const Pin& pin, nb::bytes bytes, nb::object array, double timeout_s) {
        need_member(pin);
        std::string_view view(bytes.c_str(), bytes.size());
        const Pin* other = array.is_none() ? nullptr : nb::cast<const Pin*>(array);
        if (other && other->space != pin.space)
            throw Error(Code::bad_input, std::string("the array is of the space '") + other->space->header().name + "', the channel of '" +
                                             pin.space->header().name + "'; put() it there first");
        return wait_in_slices(pin, timeout_s, [&](long slice) { return channel_send(*pin.space, pin.held, view, other ? &other->held : nullptr, slice); });
    }, "pin"_a, "message"_a, "array"_a.none(), "timeout_s"_a);
    m.def("channel_receive", [](const Pin& pin, double timeout_s) -> nb::object {
        need_member(pin);
        Message message;
        if (!wait_in_slices(pin, timeout_s, [&](long slice) { return channel_receive(*pin.space, pin.held, message, slice); })) return nb::none();
        nb::object array = nb::none();
        if (message.array) array = nb::cast(Pin(pin.space, message.array));
        return nb::make_tuple(message.kind, nb::bytes(message.bytes.data(), message.bytes.size()), array);
    });
    m.def("channel_length", [](const Pin& pin) { return channel_length(*pin.space, pin.held); });
    m.def("channel_discard", [](const Pin& pin) { need_member(pin); channel_discard(*pin.space, pin.held); });
    m.def("channel_deleted", [](const Pin& pin) { return load(channel_at(pin).deleted) != 0; });
}

}  // namespace osf::bind
