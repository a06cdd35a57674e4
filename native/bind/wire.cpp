// Connections for Python. Conversions, and what Python's threads need: calls of the same kind take turns, none holds the GIL while
// it waits, Ctrl-C is heard, and close() wakes whoever waits.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "net/door.hpp"
#include "base/lock.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

namespace {

constexpr long SLICE_NS = 100'000'000;  // how long Ctrl-C may be unheard

Key key_of(const nb::bytes& bytes) {
    Key key;
    if (bytes.size() != sizeof key.bytes) throw Error(Code::bad_input, "a key has 32 bytes, this one " + std::to_string(bytes.size()));
    std::memcpy(key.bytes, bytes.data(), sizeof key.bytes);
    return key;
}

// Calls `once(slice)` without the GIL until it returns true or the time is over.
template <class Once>
bool in_slices(std::optional<double> timeout_s, Once once) {
    if (timeout_s && !(*timeout_s < 1e9)) timeout_s.reset();  // thirty years are for ever
    const u64 start = now_ns();
    for (;;) {
        const long left = timeout_s ? std::max(0l, long(std::max(0.0, *timeout_s) * 1e9) - long(now_ns() - start)) : SLICE_NS;
        {
            nb::gil_scoped_release release;
            if (once(std::min(left, SLICE_NS))) return true;
        }
        if (timeout_s && left <= SLICE_NS) return false;
        if (PyErr_CheckSignals() < 0) throw nb::python_error();
    }
}

// The bytes of any contiguous buffer, kept in place while this lives.
struct View {
    Py_buffer view;
    View(nb::handle object, int flags) {
        if (PyObject_GetBuffer(object.ptr(), &view, flags) != 0) throw nb::python_error();
    }
    ~View() { PyBuffer_Release(&view); }
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    std::span<char> bytes() const { return {static_cast<char*>(view.buf), size_t(view.len)}; }
};

struct Connection {
    std::unique_ptr<Wire> wire;
    std::string peer;
    int fd;
    std::mutex sending, receiving;
    std::atomic<bool> closed = false;

    explicit Connection(std::unique_ptr<Wire> of) : wire(std::move(of)), peer(wire->peer()), fd(wire->fd()) {}

    [[noreturn]] void fail_closed() const { throw Error(Code::closed, "the connection to " + peer + " was closed here"); }

    // Runs `use` on the open wire, alone among calls of its kind. What breaks because close() was called meanwhile says so.
    template <class Use>
    auto with(std::mutex& turn, Use use) {
        std::lock_guard guard(turn);
        if (closed) fail_closed();
        try {
            return use(*wire);
        } catch (const HostLost&) {
            if (closed) fail_closed();
            throw;
        }
    }

    void close() {
        if (closed.exchange(true)) return;
        ::shutdown(fd, SHUT_RDWR);
        std::scoped_lock both(sending, receiving);
        wire.reset();
    }
};

void send_frame(Connection& self, u16 type, u64 id, nb::handle data) {
    const View view(data, PyBUF_C_CONTIGUOUS);
    bool queued = false;
    in_slices({}, [&](long slice) {
        return self.with(self.sending, [&](Wire& wire) {
            if (!queued) wire.queue(type, id, view.bytes());
            queued = true;
            if (wire.flush()) return true;
            pollfd ready{wire.fd(), POLLOUT, 0};
            ::poll(&ready, 1, int(slice / 1'000'000));
            return wire.flush();
        });
    });
}

nb::object receive(Connection& self, std::optional<double> timeout_s) {
    FrameHead head;
    std::string bytes;
    const bool came = in_slices(timeout_s, [&](long slice) {
        return self.with(self.receiving, [&](Wire& wire) {
            const FrameHead* next = wire.wait(slice);
            if (!next) return false;
            head = *next;
            bytes = wire.open();
            return true;
        });
    });
    if (!came) return nb::none();
    return nb::make_tuple(head.type, head.id, nb::bytes(bytes.data(), bytes.size()));
}

nb::object receive_into(Connection& self, nb::handle target, std::optional<double> timeout_s) {
    const View view(target, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    FrameHead head;
    const bool came = in_slices(timeout_s, [&](long slice) {
        return self.with(self.receiving, [&](Wire& wire) {
            const FrameHead* next = wire.wait(slice);
            if (!next) return false;
            head = *next;
            if (head.bytes > view.bytes().size())
                throw Error(Code::bad_input, "the next frame has " + std::to_string(head.bytes) + " bytes and the buffer room for " +
                                                 std::to_string(view.bytes().size()) + "; the frame still waits");
            wire.open(view.bytes().first(head.bytes));
            return true;
        });
    });
    if (!came) return nb::none();
    return nb::make_tuple(head.type, head.id, head.bytes);
}

struct Accepting {
    std::unique_ptr<Door> listener;
    u16 port;
    std::mutex turn;
    std::atomic<bool> closed = false;
};

}  // namespace

void bind_wire(nb::module_& m) {
    m.attr("FRAME_MAX") = FRAME_MAX;

    nb::class_<Connection>(m, "Wire", "One authenticated, encrypted, ordered connection.")
        .def_static(
            "connect",
            [](const std::string& host, u16 port, const nb::bytes& key, double timeout_s) {
                const Key secret = key_of(key);
                nb::gil_scoped_release release;
                return std::make_unique<Connection>(Wire::connect(host, port, secret, int(std::clamp(timeout_s, 0.0, 1e6) * 1e3)));
            },
            "host"_a, "port"_a, "key"_a, "timeout"_a = 5.0)
        .def_prop_ro("peer", [](const Connection& self) { return self.peer; })
        .def("send", send_frame, "type"_a, "id"_a, "data"_a)
        .def("receive", receive, "timeout"_a = nb::none())
        .def("receive_into", receive_into, "buffer"_a, "timeout"_a = nb::none())
        .def("close", &Connection::close, nb::call_guard<nb::gil_scoped_release>());

    // "proven"; "unanswered": something is there and ends every connection, as one with another key does; "lost": nothing is.
    m.def("knock", [](const std::string& host, u16 port, const nb::bytes& key, int timeout_ms) {
        const Key secret = key_of(key);
        nb::gil_scoped_release release;
        for (int tries = 0; tries < 4; tries++) {  // one that is full, or is just ending, does so once
            try {
                Wire::connect(host, port, secret, timeout_ms);
                return "proven";
            } catch (const Unanswered&) {
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
            } catch (const Error& error) { return error.code == Code::refused ? "unanswered" : "lost"; }
        }
        return "unanswered";
    }, "host"_a, "port"_a, "key"_a, "timeout_ms"_a);

    nb::class_<Accepting>(m, "WireListener", "A listening socket; strangers get no answer.")
        .def(
            "__init__",
            [](Accepting* self, const std::string& host, u16 port, const nb::bytes& key) {
                auto listener = std::make_unique<Door>(host, port, key_of(key));
                new (self) Accepting;
                self->port = listener->port();
                self->listener = std::move(listener);
            },
            "host"_a, "port"_a, "key"_a)
        .def_prop_ro("port", [](const Accepting& self) { return self.port; })
        .def(
            "accept",
            [](Accepting& self, std::optional<double> timeout_s) {
                std::unique_ptr<Wire> wire;
                in_slices(timeout_s, [&](long slice) {
                    std::lock_guard guard(self.turn);
                    if (self.closed) throw Error(Code::closed, "the listener was closed here");
                    wire = self.listener->accept(slice);
                    return wire != nullptr;
                });
                return wire ? std::make_unique<Connection>(std::move(wire)) : nullptr;
            },
            "timeout"_a = nb::none())
        .def(
            "close",
            [](Accepting& self) {
                self.closed = true;
                std::lock_guard guard(self.turn);
                self.listener.reset();
            },
            nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace osf::bind
