// KV pools for Python; conversions only.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bind_space.hpp"
#include "kv_draft.hpp"
#include "sync.hpp"

namespace nb = nanobind;
using namespace osf;
using namespace nb::literals;

using Pool = std::shared_ptr<KvPool>;

// A buffer of Python's for as long as this lives.
class Buffer {
public:
    Buffer(nb::handle from, int flags) {
        if (PyObject_GetBuffer(from.ptr(), &view, flags) < 0) throw nb::python_error();
    }
    ~Buffer() { PyBuffer_Release(&view); }
    Buffer(const Buffer&) = delete;
    Py_buffer view{};
};

[[noreturn]] static void not_a_token(long long token) {
    throw Error(Code::bad_input, "token " + std::to_string(token) + " is out of range: tokens are integers from 0 to 4294967295");
}

// Tokens as they are kept and hashed: a buffer of unsigned 4-byte integers as it is, one of signed or 8-byte ones or a list converted.
class Tokens {
public:
    explicit Tokens(nb::handle from) {
        if (PyList_Check(from.ptr())) {
            of_list(from);
            return;
        }
        if (PyObject_GetBuffer(from.ptr(), &buffer_, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) throw nb::python_error();
        const char kind = buffer_.format ? buffer_.format[buffer_.format[0] == '<' || buffer_.format[0] == '@' || buffer_.format[0] == '='] : 'B';
        const bool is_signed = std::strchr("ilq", kind), is_unsigned = std::strchr("ILQ", kind);
        const u64 count = u64(buffer_.len / buffer_.itemsize);
        if (!kind || (!is_signed && !is_unsigned) || (buffer_.itemsize != 4 && buffer_.itemsize != 8)) {
            PyBuffer_Release(&buffer_);
            throw Error(Code::bad_input, "tokens are integers of 4 or 8 bytes");
        }
        if (buffer_.itemsize == 4 && is_unsigned) span = {static_cast<const u32*>(buffer_.buf), count};
        else if (buffer_.itemsize == 4) convert<std::int32_t>(count);
        else convert<std::int64_t>(count);
    }
    ~Tokens() {
        if (buffer_.obj) PyBuffer_Release(&buffer_);
    }
    Tokens(const Tokens&) = delete;

    std::span<const u32> span;

private:
    void of_list(nb::handle from) {
        const Py_ssize_t count = PyList_Size(from.ptr());
        own_.resize(u64(count));
        for (Py_ssize_t at = 0; at < count; at++) {
            PyObject* item = PyList_GetItem(from.ptr(), at);
            long long token = PyLong_AsLongLong(item);
            if (token < 0 || token > 0xffffffffll) {
                if (!PyErr_Occurred()) not_a_token(token);
                PyErr_Clear();
                throw Error(Code::bad_input, "tokens are integers from 0 to 4294967295, got " + std::string(nb::repr(item).c_str()) +
                                                 " at position " + std::to_string(at));
            }
            own_[u64(at)] = u32(token);
        }
        span = own_;
    }
    template <class T>
    void convert(u64 count) {
        const T* from = static_cast<const T*>(buffer_.buf);
        own_.resize(count);
        u64 high = 0;
        for (u64 at = 0; at < count; at++) {
            high |= u64(std::int64_t(from[at])) >> 32;
            own_[at] = u32(from[at]);
        }
        if (high) {
            for (u64 at = 0; at < count; at++)
                if (u64(std::int64_t(from[at])) >> 32) {
                    T bad = from[at];
                    PyBuffer_Release(&buffer_);
                    buffer_.obj = nullptr;
                    not_a_token(bad);
                }
        }
        span = own_;
    }
    Py_buffer buffer_{};
    std::vector<u32> own_;
};

static KvKey root_of(nb::bytes root) {
    KvKey key;
    if (root.size() != sizeof key) throw Error(Code::bad_input, "a root key has 32 bytes, got " + std::to_string(root.size()));
    std::memcpy(&key, root.c_str(), sizeof key);
    return key;
}

static std::span<const u8> bytes_of(const nb::bytes& bytes) { return {reinterpret_cast<const u8*>(bytes.c_str()), bytes.size()}; }
static u64 expiry(u64 ttl_ns) { return ttl_ns ? wall_ns() + ttl_ns : 0; }

// Without the GIL, where it is worth the while.
template <class F>
static auto freely(u64 tokens, F work) {
    std::optional<nb::gil_scoped_release> release;
    if (tokens > 2048) release.emplace();
    return work();
}

struct Pieces {             // addresses come as a buffer of u64
    Buffer buffer;
    KvPieces pieces;
    Pieces(nb::handle addresses, u64 first, u64 bytes) : buffer(addresses, PyBUF_SIMPLE) {
        if (buffer.view.len % 8) throw Error(Code::bad_input, "addresses have 8 bytes each");
        pieces = {{static_cast<const u64*>(buffer.view.buf), u64(buffer.view.len) / 8}, first, bytes};
    }
};

static nb::tuple stored_tuple(const KvStored& stored) { return nb::make_tuple(stored.blocks, stored.present, stored.stored, stored.declined); }

static Pool open_pool(std::shared_ptr<Space> space, std::string_view name) {
    Held held = space->find(name);
    if (!held) return nullptr;
    return std::make_shared<KvPool>(std::move(space), held);
}

static Pool make_pool(std::shared_ptr<Space> space, std::string name, u64 block_bytes, u32 block_tokens, u32 slots) {
    nb::gil_scoped_release release;
    KvShape shape{block_bytes, block_tokens, slots};
    u64 bytes = kv_head(shape).bytes;
    Held held = space->make({bytes, 3, kind_pool, {bytes}, {}, std::move(name)}, false);
    try {
        KvPool::format(*space, held, shape);
        space->publish(held, false);
    } catch (...) {
        space->release(held);
        throw;
    }
    space->hand_out(held);
    return std::make_shared<KvPool>(std::move(space), held);
}

static KvHit match(const Pool& pool, nb::bytes root, nb::handle tokens, bool verify) {
    Tokens given(tokens);
    KvKey key = root_of(root);
    return freely(given.span.size(), [&] {
        KvHit hit(pool, key, given.span, verify);
        hit.count(given.span.size() / pool->head().block_tokens);
        return hit;
    });
}

static nb::tuple put(const Pool& pool, nb::bytes root, nb::handle tokens, u32 tenant, u64 ttl_ns, u64 first, u64 piece_bytes, nb::handle addresses) {
    Tokens given(tokens);
    Pieces from(addresses, 0, piece_bytes);
    KvKey key = root_of(root);
    KvStored stored;
    {
        nb::gil_scoped_release release;
        KvDraft draft(pool, key, given.span, tenant, expiry(ttl_ns));
        stored = kv_put(draft, first, from.pieces);
    }
    return stored_tuple(stored);
}

static nb::tuple put_value(const Pool& pool, nb::bytes root, nb::bytes name, nb::handle value, u32 tenant, u64 ttl_ns) {
    Buffer from(value, PyBUF_C_CONTIGUOUS);
    KvKey key = root_of(root);
    KvStored stored;
    {
        nb::gil_scoped_release release;
        KvDraft draft(pool, key, bytes_of(name), u64(from.view.len), tenant, expiry(ttl_ns));
        stored = kv_put_value(draft, static_cast<const char*>(from.view.buf));
    }
    return stored_tuple(stored);
}

static nb::object get_into(const Pool& pool, nb::bytes root, nb::bytes name, nb::handle into) {
    Buffer to(into, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS);
    KvHit hit(pool, root_of(root), bytes_of(name));
    hit.count(1);
    if (hit.slots.empty()) return nb::none();
    if (u64(to.view.len) < hit.nbytes)
        throw Error(Code::bad_input, "the value has " + std::to_string(hit.nbytes) + " bytes, the buffer to copy it into only " + std::to_string(to.view.len));
    {
        nb::gil_scoped_release release;
        hit.read_value(static_cast<char*>(to.view.buf));
    }
    return nb::int_(hit.nbytes);
}

static nb::object get_value(const Pool& pool, nb::bytes root, nb::bytes name) {
    KvHit hit(pool, root_of(root), bytes_of(name));
    hit.count(1);
    if (hit.slots.empty()) return nb::none();
    nb::object result = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(hit.nbytes)));
    char* into = PyBytes_AsString(result.ptr());
    nb::gil_scoped_release release;
    hit.read_value(into);
    return result;
}

// What is found by tokens, without counting as a use.
static KvHit peek(const Pool& pool, nb::bytes root, nb::handle tokens) {
    Tokens given(tokens);
    KvKey key = root_of(root);
    return freely(given.span.size(), [&] { return KvHit(pool, key, given.span, false); });
}

static u32 evict_last(const Pool& pool, KvHit hit, u32 keep) {
    if (hit.slots.empty()) return 0;
    u32 last = hit.slots.back();
    KvKey key;
    std::memcpy(&key, pool->entry(last).key, sizeof key);
    { KvHit gone(std::move(hit)); }              // our own pin would keep it
    nb::gil_scoped_release release;
    return pool->evict(last, key, keep);
}

static u64 stick(const Pool& pool, nb::bytes root, nb::handle tokens, bool on) {
    pool->need_write();
    KvHit hit = peek(pool, root, tokens);
    nb::gil_scoped_release release;
    if (on && !hit.slots.empty()) pool->stick(hit.slots.back(), true);
    for (u32 slot : hit.slots)
        if (!on && load(pool->entry(slot).flags) & kv_sticky) pool->stick(slot, false);
    return hit.slots.size();
}

static nb::dict stats(const KvPool& pool) {
    const KvStats stats = pool.stats();
    nb::dict result;
    result["block_bytes"] = stats.block_bytes;
    result["block_tokens"] = stats.block_tokens;
    result["capacity_blocks"] = stats.slots;
    result["blocks"] = stats.live;
    result["free_blocks"] = stats.free;
    result["filling_blocks"] = stats.filling;
    result["queries"] = stats.queries;
    result["queried_blocks"] = stats.queried_blocks;
    result["hit_blocks"] = stats.hit_blocks;
    result["stored_blocks"] = stats.stored_blocks;
    result["evicted_blocks"] = stats.evicted_blocks;
    result["expired_blocks"] = stats.expired_blocks;
    result["declined_blocks"] = stats.declined_blocks;
    return result;
}

static nb::dict audit(KvPool& pool) {
    KvAudit found;
    {
        nb::gil_scoped_release release;
        pool.need_write();
        found = pool.audit();
    }
    nb::dict result;
    result["blocks"] = found.live;
    result["free"] = found.free;
    result["filling"] = found.filling;
    result["leaked"] = found.leaked;
    result["orphans"] = found.orphans;
    result["unfindable"] = found.unfindable;
    result["miscounted"] = found.miscounted;
    return result;
}

// The keys of a prompt's blocks, 32 bytes each: for tests, routers and logs.
static nb::bytes keys(nb::bytes root, nb::handle tokens, u32 block_tokens) {
    Tokens given(tokens);
    if (!block_tokens) throw Error(Code::bad_input, "a block has at least one token");
    KvChain chain(root_of(root), block_tokens);
    std::vector<KvKey> result;
    for (u64 at = 0; at + block_tokens <= given.span.size(); at += block_tokens) result.push_back(chain.next(given.span.data() + at));
    return nb::bytes(result.data(), result.size() * sizeof(KvKey));
}

// A hit shows all of the pool's blocks as its buffer, for views of its own and for tables of slots; read-only. KVBytes is the same for
// those who have no read-only views.
struct Writable {
    nb::object hit;
};
static int fill_buffer(PyObject* owner, const KvHit& hit, Py_buffer* view, int flags, bool read_only) {
    const KvHead& head = hit.pool->head();
    return PyBuffer_FillInfo(view, owner, hit.pool->data(), Py_ssize_t(head.stride * head.slots), read_only, flags);
}
static int hit_buffer(PyObject* self, Py_buffer* view, int flags) {
    return fill_buffer(self, *nb::inst_ptr<KvHit>(nb::handle(self)), view, flags, true);
}
static int writable_buffer(PyObject* self, Py_buffer* view, int flags) {
    const Writable& of = *nb::inst_ptr<Writable>(nb::handle(self));
    const KvHit& hit = *nb::inst_ptr<KvHit>(of.hit);
    return fill_buffer(self, hit, view, flags, hit.pool->space->read_only());
}
static PyType_Slot hit_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(hit_buffer)}, {0, nullptr}};
static PyType_Slot writable_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(writable_buffer)}, {0, nullptr}};

static u64 offset_of(const KvHit& hit, u64 block, u64 offset) {
    if (block >= hit.slots.size()) throw nb::index_error();
    return hit.slots[block] * hit.pool->head().stride + offset;
}

static void bind_hit(nb::module_& m) {
    nb::class_<Writable>(m, "KVBytes", nb::type_slots(writable_slots));
    nb::class_<KvHit>(m, "KVHit", nb::type_slots(hit_slots))
        .def("__reduce__", refuse_pickle)
        .def("__len__", [](const KvHit& hit) { return hit.slots.size(); })
        .def_prop_ro("nbytes", [](const KvHit& hit) { return hit.nbytes; })
        .def_prop_ro("slots", [](const KvHit& hit) { return nb::bytes(hit.slots.data(), 4 * hit.slots.size()); })
        .def_prop_ro("stride", [](const KvHit& hit) { return hit.pool->head().stride; })
        .def("view", [](nb::handle self, u16 dtype, nb::tuple shape, u64 block, u64 offset) {
            return view_at(self, dtype, shape, offset_of(*nb::inst_ptr<KvHit>(self), block, offset));
        })
        .def("offset", offset_of)
        .def("writable", [](nb::object self) { return Writable{self}; })
        .def("read", [](const KvHit& hit, u64 block, u64 count, u64 first_piece, u64 piece_bytes, nb::handle addresses) {
            Pieces into(addresses, first_piece, piece_bytes);
            nb::gil_scoped_release release;
            hit.read(block, count, into.pieces);
        });
}

static void bind_draft(nb::module_& m) {
    nb::class_<KvDraft>(m, "KVDraft")
        .def("__reduce__", refuse_pickle)
        .def_prop_ro("blocks", &KvDraft::blocks)
        .def_prop_ro("next", &KvDraft::next)
        .def_prop_ro("reserved", &KvDraft::reserved)
        .def("write", [](KvDraft& draft, u64 first, u64 first_piece, u64 piece_bytes, nb::handle addresses) {
            Pieces from(addresses, first_piece, piece_bytes);
            nb::gil_scoped_release release;
            draft.write(first, from.pieces);
        })
        .def("publish", [](KvDraft& draft) {
            KvStored stored;
            {
                nb::gil_scoped_release release;
                stored = draft.publish();
                draft.pool->count_declined(stored.declined);
            }
            return stored_tuple(stored);
        })
        .def("abandon", [](KvDraft& draft) { nb::gil_scoped_release release; draft.abandon(); });
}

void bind_kv(nb::module_& m) {
    bind_hit(m);
    bind_draft(m);
    nb::class_<KvPool>(m, "KVCore")
        .def("__reduce__", refuse_pickle)
        .def_static("make", make_pool, "space"_a, "name"_a, "block_bytes"_a, "block_tokens"_a, "slots"_a)
        .def_static("open", open_pool, "space"_a, "name"_a)
        .def_static("bytes_needed", [](u64 block_bytes, u32 block_tokens, u32 slots) { return kv_head({block_bytes, block_tokens, slots}).bytes; })
        .def("tenant", [](KvPool& pool, std::string_view name, std::optional<u32> quota) {
            nb::gil_scoped_release release;
            return pool.tenant(name, quota ? &*quota : nullptr);
        }, "name"_a, "quota"_a.none())
        .def("tenants", [](KvPool& pool) {
            nb::list result;
            for (const KvTenantStats& tenant : pool.tenants()) {
                nb::object name = nb::steal(PyUnicode_DecodeUTF8(tenant.name.data(), Py_ssize_t(tenant.name.size()), "replace"));
                result.append(nb::make_tuple(name, tenant.quota, tenant.used));
            }
            return result;
        })
        .def("match", match)
        .def("present", [](const Pool& pool, nb::bytes root, nb::handle tokens) { return peek(pool, root, tokens).slots.size(); })
        .def("put", put)
        .def("draft", [](const Pool& pool, nb::bytes root, nb::handle tokens, u32 tenant, u64 ttl_ns) {
            Tokens given(tokens);
            KvKey key = root_of(root);
            nb::gil_scoped_release release;
            auto draft = std::make_unique<KvDraft>(pool, key, given.span, tenant, expiry(ttl_ns));
            draft->reserve(draft->blocks());
            return draft;
        })
        .def("put_value", put_value)
        .def("get_into", get_into)
        .def("get_value", get_value)
        .def("present_value", [](const Pool& pool, nb::bytes root, nb::bytes name) { return !KvHit(pool, root_of(root), bytes_of(name)).slots.empty(); })
        .def("evict", [](const Pool& pool, nb::bytes root, nb::handle tokens, u32 keep) { return evict_last(pool, peek(pool, root, tokens), keep); })
        .def("evict_value", [](const Pool& pool, nb::bytes root, nb::bytes name) { return evict_last(pool, KvHit(pool, root_of(root), bytes_of(name)), 0); })
        .def("stick", stick)
        .def("clear", [](KvPool& pool, std::optional<u32> tenant) { nb::gil_scoped_release release; return pool.clear(tenant.value_or(NO_SLOT)); }, "tenant"_a.none())
        .def("stats", stats)
        .def("audit", audit)
        .def("check_usable", &KvPool::check_usable)
        .def_prop_ro("facts", [](const KvPool& pool) {
            const KvHead& head = pool.head();
            return nb::make_tuple(head.block_bytes, head.block_tokens, head.slots, head.stride);
        });
    m.def("kv_keys", keys);
}
