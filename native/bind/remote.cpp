// Spaces on other hosts for Python: calls, pins, transfers; and a server of one space for tests. Conversions only.
#include "bind/remote.hpp"
#include "base/log.hpp"

#include "coherence/host_client.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "net/listener.hpp"
#include "rpc/serve.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace osf::bind {

static Key key_of(const nb::bytes& bytes) {
    Key key;
    if (bytes.size() != sizeof key.bytes) throw Error(Code::bad_input, "a key has 32 bytes, got " + std::to_string(bytes.size()));
    std::memcpy(key.bytes, bytes.c_str(), sizeof key.bytes);
    return key;
}

static std::shared_ptr<Remote> make_remote(const std::string& host, u32 number, const nb::bytes& key, std::string space, u16 own, u32 hosts, u64 base,
                                           u64 reserve, u64 hosts_hash, bool read_only) {
    Peer peer;
    size_t colon = host.rfind(':');
    u64 port = 0;
    for (size_t at = colon == std::string::npos ? host.size() : colon + 1; at < host.size() && port < 65536; at++)
        port = host[at] >= '0' && host[at] <= '9' ? port * 10 + u64(host[at] - '0') : 65536;
    if (colon == std::string::npos || !port || port > 65535) throw Error(Code::bad_input, "'" + host + "' is no host:port");
    if (space.empty() || space.size() > 64) throw Error(Code::bad_input, "the name of a space has 1 to 64 bytes");
    peer.host = host.substr(0, colon);
    peer.port = u16(port);
    peer.number = number;
    peer.key = key_of(key);
    HelloHead& head = peer.hello.head;
    head.flags = read_only ? hello_read_only : 0;
    head.host = own;
    head.base = base;
    head.reserve = reserve;
    head.hosts_hash = hosts_hash;
    head.hosts = hosts;
    peer.hello.space = std::move(space);
    return std::make_shared<Remote>(std::move(peer));
}

static RemotePin make(std::shared_ptr<Remote> remote, u64 nbytes, u16 dtype, u8 kind, std::vector<u64> shape, std::string descr, std::string name, bool zero) {
    Spec spec{nbytes, dtype, kind, std::move(shape), std::move(descr), std::move(name)};
    RemoteArray array;
    {
        nb::gil_scoped_release release;
        array = remote->make(spec, zero);
    }
    return {std::move(remote), std::move(array)};
}

// A contiguous buffer, held.
struct Bytes {
    Py_buffer buffer{};
    Bytes(nb::handle source, bool writable) {
        if (PyObject_GetBuffer(source.ptr(), &buffer, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) < 0) throw nb::python_error();
    }
    ~Bytes() { PyBuffer_Release(&buffer); }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
    char* data() const { return static_cast<char*>(buffer.buf); }
    u64 size() const { return u64(buffer.len); }
};

static RemotePin put(std::shared_ptr<Remote> remote, nb::handle source, u64 nbytes, u16 dtype, u8 kind, std::vector<u64> shape, std::string descr,
                     std::string name, bool replace) {
    Spec spec{nbytes, dtype, kind, std::move(shape), std::move(descr), std::move(name)};
    std::optional<Bytes> bytes;
    const char* from;
    if (PyLong_Check(source.ptr())) {
        from = reinterpret_cast<const char*>(PyLong_AsUnsignedLongLong(source.ptr()));
    } else {
        bytes.emplace(source, false);
        from = bytes->data();
        if (bytes->size() != nbytes) throw Error(Code::bad_input, "the buffer does not have the array's size");
    }
    RemoteArray array;
    {
        nb::gil_scoped_release release;
        array = remote->put(spec, {from, nbytes}, replace);
    }
    return {std::move(remote), std::move(array)};
}

// A call without the interpreter.
template <class Work>
static auto freely(Work work) {
    nb::gil_scoped_release release;
    return work();
}

static std::optional<RemotePin> find(std::shared_ptr<Remote> remote, std::string_view name) {
    auto array = freely([&] { return remote->find(name); });
    if (!array) return std::nullopt;
    return RemotePin(std::move(remote), std::move(*array));
}

static RemoteArray& own(Remote& remote, const RemotePin& pin) {
    if (pin.remote.get() != &remote) throw Error(Code::bad_input, "the array belongs to another space, or to another host");
    return pin.array;
}

// One element for each host: the pin, None, or the error.
static nb::list find_all(const std::vector<std::shared_ptr<Remote>>& remotes, std::string_view name) {
    std::vector<Remote*> raw;
    for (const auto& remote : remotes) raw.push_back(remote.get());
    std::vector<std::exception_ptr> errors(raw.size());
    auto found = freely([&] { return Remote::find_all(raw, name, [&](size_t which, const Error&) { errors[which] = std::current_exception(); }); });
    nb::list result;
    for (size_t which = 0; which < raw.size(); which++) {
        if (found[which]) {
            result.append(RemotePin(remotes[which], std::move(*found[which])));
            continue;
        }
        try {
            if (errors[which]) std::rethrow_exception(errors[which]);
            result.append(nb::none());
        } catch (const HostLost& error) {
            result.append(nb::module_::import_("openshelf.errors").attr("HostLost")(printable(error.what()), error.host, nb::make_tuple(error.address, error.bytes)));
        }
    }
    return result;
}

// A transfer and the memory it uses. One that Python lets go of while it is under way keeps both in `left` until it is done.
struct Moving {
    std::shared_ptr<Remote> remote;
    std::shared_ptr<Transfer> transfer;
    std::shared_ptr<Bytes> bytes;
    static inline auto& left = *new std::vector<Moving>;

    Moving(std::shared_ptr<Remote> of, std::shared_ptr<Transfer> what, std::shared_ptr<Bytes> with) : remote(std::move(of)), transfer(std::move(what)), bytes(std::move(with)) {}
    Moving(const Moving&) = delete;
    Moving(Moving&&) noexcept = default;
    Moving& operator=(Moving&&) noexcept = default;
};
struct PyTransfer {
    Moving moving;
    explicit PyTransfer(Moving&& what) : moving(std::move(what)) {}
    PyTransfer(PyTransfer&&) noexcept = default;
    ~PyTransfer() {
        if (moving.transfer && !moving.transfer->done()) Moving::left.push_back(std::move(moving));
    }
};

static PyTransfer move(std::shared_ptr<Remote> remote, const std::vector<u64>& addresses, nb::handle buffer, u64 row, bool write) {
    std::erase_if(Moving::left, [](const Moving& moving) { return moving.transfer->done(); });
    auto bytes = std::make_shared<Bytes>(buffer, !write);
    if (addresses.empty() || addresses.size() > RANGES_MAX)
        throw Error(Code::bad_input, "one transfer has 1 to " + std::to_string(RANGES_MAX) + " addresses, got " + std::to_string(addresses.size()));
    if (row > bytes->size() || addresses.size() * row != bytes->size())
        throw Error(Code::bad_input, std::to_string(addresses.size()) + " rows of " + std::to_string(row) + " bytes are not the buffer's " +
                                         std::to_string(bytes->size()) + " bytes");
    std::vector<Range> ranges;
    std::vector<char*> places;
    for (size_t at = 0; at < addresses.size(); at++) {
        ranges.push_back({addresses[at], row});
        places.push_back(bytes->data() + at * row);
    }
    auto transfer = freely([&] { return write ? remote->write(std::move(ranges), std::move(places)) : remote->get(std::move(ranges), std::move(places)); });
    return PyTransfer({std::move(remote), std::move(transfer), std::move(bytes)});
}

static bool wait(PyTransfer& self, double timeout_s) {
    Moving& moving = self.moving;
    long timeout = timeout_s < 0 || !(timeout_s < 1e9) ? -1 : long(timeout_s * 1e9);
    auto ctrl_c = [] {
        nb::gil_scoped_acquire acquire;
        return PyErr_CheckSignals() < 0;
    };
    bool done;
    {
        nb::gil_scoped_release release;
        done = moving.remote->wait(*moving.transfer, timeout, ctrl_c);
    }
    if (PyErr_Occurred()) throw nb::python_error();
    return done;
}

static void need_mapping(const RemotePin& pin) {
    pin.remote->show(pin.array);
    auto space = std::static_pointer_cast<Space>(pin.remote->keeps);
    auto attachment = space ? std::static_pointer_cast<Attachment>(space->companion) : nullptr;
    auto check = [&] {
        if (pin.remote->views_are_gone())
            throw HostLost(pin.remote->peer().label(), "the host " + pin.remote->peer().label() + " has given up what this process held there; let go of the arrays from before, "
                           "then find them again", pin.array.address, pin.array.nbytes);
    };
    if (pin.remote->stale && attachment) freely([&] {
        check();
        attachment->restore(pin.remote->peer().number);
        pin.remote->stale = false;
        pin.remote->mapped = true;
    });
    if (pin.remote->mapped) {
        if (attachment) freely([&] { attachment->meet(pin.array.address, pin.array.incarnation, check); });
        return;
    }
    if (const std::string& why = pin.remote->left_behind(); !why.empty())
        throw HostLost(pin.remote->peer().label(), why + "; its memory cannot be touched in this process, space.get and space.put can be used", pin.array.address, pin.array.nbytes);
    throw Error(Code::not_permitted, "this process cannot touch the memory of the host " + pin.remote->peer().label() +
                                         ": " + abilities().why + "; copy with space.get(address, out) and space.put(address, data)");
}

static int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    const RemotePin& pin = *nb::inst_ptr<RemotePin>(nb::handle(self));
    try {
        need_mapping(pin);
    } catch (const Error& error) {
        try {
            PyErr_SetString(nb::module_::import_("openshelf.errors").attr("NotPermitted").ptr(), printable(error.what()).c_str());
        } catch (nb::python_error& failed) {
            failed.restore();
        }
        return -1;
    }
    return PyBuffer_FillInfo(view, self, reinterpret_cast<void*>(pin.array.address), Py_ssize_t(pin.array.nbytes), pin.remote->read_only(), flags);
}
static PyType_Slot pin_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

static nb::object numpy_view(nb::handle self) {
    const RemotePin& pin = *nb::inst_ptr<RemotePin>(self);
    need_mapping(pin);
    return view_of(self, pin.array.dtype, pin.array.shape);
}

// A host of one space, without coherence: what tests of calls need.
struct TestServer {
    Proxies proxies;
    Listener listener;
    TestServer(std::shared_ptr<Space> space, const Key& key, const std::string& host, u16 port, u64 incarnation)
        : proxies(Served{space, incarnation, 65536, [](u64 address, u64 bytes) { return std::to_string(address) + "+" + std::to_string(bytes); }}),
          listener(host, port, key, [this, space](std::unique_ptr<Wire>& wire, const Hello& hello) {
              const Header& header = space->header();
              Cluster{header.base, header.reserve, 0, 2}.check(hello);
              if (hello.space != header.name) throw Error(Code::unknown_name, "there is no space '" + hello.space + "' on this host");
              if (hello.head.role != role_process) throw Error(Code::refused, "this host serves processes only");
              serve_process(proxies, wire, hello);
          }) {}
};

void bind_remote(nb::module_& m) {
    nb::class_<RemotePin>(m, "RemotePin", nb::type_slots(pin_slots))
        .def_prop_ro("address", [](const RemotePin& pin) { return pin.array.address; })
        .def_prop_ro("nbytes", [](const RemotePin& pin) { return pin.array.nbytes; })
        .def_prop_ro("dtype", [](const RemotePin& pin) { return pin.array.dtype; })
        .def_prop_ro("kind", [](const RemotePin& pin) { return pin.array.kind; })
        .def_prop_ro("descr", [](const RemotePin& pin) { return pin.array.descr; })
        .def("__reduce__", refuse_pickle)
        .def("numpy", numpy_view)
        .def_prop_ro("shape", [](const RemotePin& pin) { return shape_tuple(pin.array.shape); })
        .def_prop_ro("name", [](const RemotePin& pin) { return freely([&] { return pin.remote->look(pin.array).second; }); })
        .def_prop_ro("state", [](const RemotePin& pin) { return freely([&] { return pin.remote->look(pin.array).first; }); });

    nb::class_<PyTransfer>(m, "Transfer")
        .def_prop_ro("done", [](const PyTransfer& self) { return self.moving.transfer->done(); })
        .def("wait", wait, "timeout_s"_a = -1.0)
        .def("__reduce__", refuse_pickle);

    nb::class_<Remote>(m, "Remote")
        .def(nb::new_(&make_remote), "host"_a, "number"_a, "key"_a, "space"_a, "own"_a, "hosts"_a, "base"_a, "reserve"_a, "hosts_hash"_a, "read_only"_a)
        .def("__reduce__", refuse_pickle)
        .def("make", make, "nbytes"_a, "dtype"_a, "kind"_a, "shape"_a, "descr"_a, "name"_a, "zero"_a)
        .def("put", put, "source"_a, "nbytes"_a, "dtype"_a, "kind"_a, "shape"_a, "descr"_a, "name"_a, "replace"_a)
        .def("publish", [](Remote& remote, const RemotePin& pin, bool replace) { freely([&] { remote.publish(own(remote, pin), replace); }); })
        .def("name", [](Remote& remote, const RemotePin& pin, std::string_view name, const RemotePin* meanwhile) {
                 freely([&] { remote.name(own(remote, pin), name, meanwhile ? &own(remote, *meanwhile) : nullptr); });
             }, "pin"_a, "name"_a, "meanwhile"_a.none() = nb::none())
        .def("find", find)
        .def("at", [](std::shared_ptr<Remote> remote, u64 address) {
                 RemoteArray array = freely([&] { return remote->at(address); });
                 return RemotePin(std::move(remote), std::move(array));
             })
        .def("contains", [](Remote& remote, std::string_view name) { return freely([&] { return remote.contains(name); }); })
        .def("remove", [](Remote& remote, std::string_view name, const RemotePin* only) {
                 return freely([&] { return remote.remove(name, only ? &own(remote, *only) : nullptr); });
             }, "name"_a, "only"_a.none() = nb::none())
        .def("rename", [](Remote& remote, std::string_view from, std::string_view to, const RemotePin* meanwhile) {
                 freely([&] { remote.rename(from, to, meanwhile ? &own(remote, *meanwhile) : nullptr); });
             }, "name"_a, "to"_a, "meanwhile"_a.none() = nb::none())
        .def("list", [](Remote& remote, std::string_view prefix) { return entry_list(freely([&] { return remote.list(prefix); })); })
        .def("grow", [](Remote& remote, u64 nbytes) { freely([&] { remote.grow(nbytes); }); })
        .def("collect", [](Remote& remote) { freely([&] { remote.collect(); }); })
        .def("audit", [](Remote& remote) { return audit_dict(freely([&] { return remote.audit(); })); })
        .def("stats", [](Remote& remote) { return stats_dict(freely([&] { return remote.stats(); })); })
        .def("check_usable", &Remote::check_usable)
        .def("owners", [](Remote& remote, u64 address, u64 nbytes) {
                 std::string answer = freely([&] { return remote.owners(address, nbytes); });
                 return nb::bytes(answer.data(), answer.size());
             })
        .def("get_bytes", [](std::shared_ptr<Remote> remote, const std::vector<u64>& addresses, nb::handle into, u64 row) {
                 return move(std::move(remote), addresses, into, row, false);
             }, "addresses"_a, "into"_a, "row"_a)
        .def("put_bytes", [](std::shared_ptr<Remote> remote, const std::vector<u64>& addresses, nb::handle source, u64 row) {
                 return move(std::move(remote), addresses, source, row, true);
             }, "addresses"_a, "source"_a, "row"_a)
        .def("set_mapped", [](Remote& remote, bool mapped) { remote.mapped = mapped; })
        .def("keep", [](Remote& remote, std::shared_ptr<Space> core) {
                 const auto* attachment = static_cast<const Attachment*>(core->companion.get());
                 remote.ask_keeper([attachment, number = remote.peer().number] { return attachment->heard_ns(number); }, [attachment] { return attachment->term(); },
                                   [attachment] { return attachment->epoch(); });
                 remote.keeps = std::move(core);
             })
        .def("close", [](Remote& remote) { freely([&] { remote.close(); }); })
        .def_prop_ro("host", [](const Remote& remote) { return remote.peer().label(); })
        .def_prop_ro("incarnation", [](Remote& remote) { return freely([&] { return remote.welcome().incarnation; }); });

    m.def("find_all", find_all, "remotes"_a, "name"_a);

    nb::class_<TestServer>(m, "TestServer")
        .def_prop_ro("port", [](const TestServer& server) { return server.listener.port(); })
        .def_prop_ro("processes", [](TestServer& server) { return server.proxies.count(); })
        .def("stop", [](TestServer& server) { freely([&] { server.listener.stop(); }); });
    m.def("serve_for_tests", [](std::shared_ptr<Space> core, nb::bytes key, const std::string& host, u16 port, u64 incarnation) {
        return std::make_unique<TestServer>(std::move(core), key_of(key), host, port, incarnation);
    }, "core"_a, "key"_a, "host"_a = "127.0.0.1", "port"_a = 0, "incarnation"_a = 1);
    bind_remote_sync(m);
}

}  // namespace osf::bind
