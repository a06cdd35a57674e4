// KV pools for Python; conversions only.
#include "bind/kv.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>

#include "bind/space.hpp"

namespace osf::bind {

using namespace nb::literals;

void bind_kv_hit(nb::module_& m);
void bind_kv_other_hosts(nb::module_& m);

using Pool = std::shared_ptr<KvPool>;

static std::span<const u8> bytes_of(const nb::bytes& bytes) { return {reinterpret_cast<const u8*>(bytes.c_str()), bytes.size()}; }
static u64 expiry(u64 ttl_ns) { return ttl_ns ? wall_ns() + ttl_ns : 0; }

// Without the GIL, where it is worth the while.
template <class F>
static auto freely(bool much, F work) {
    std::optional<nb::gil_scoped_release> release;
    if (much) release.emplace();
    return work();
}

static Pool open_pool(const std::shared_ptr<Space>& space, std::string_view name) {
    nb::gil_scoped_release release;
    return KvPool::open(space, name);
}

static Pool make_pool(const std::shared_ptr<Space>& space, std::string name, u64 block_bytes, u32 block_tokens, u32 slots) {
    nb::gil_scoped_release release;
    return KvPool::make(space, std::move(name), {block_bytes, block_tokens, slots});
}

static KvHit match(const Pool& pool, nb::bytes root, nb::handle tokens, bool verify, bool count) {
    Tokens given(tokens);
    KvKey key = root_of(root);
    return freely(given.span.size() > 2048 || pool->plain(), [&] {
        KvHit hit(pool, key, given.span, verify);
        if (!count) return hit;
        hit.prefetch();
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
    PyBytesOf from(value, PyBUF_C_CONTIGUOUS);
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
    PyBytesOf to(into, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS);
    KvHit hit(pool, kv_name_key(root_of(root), bytes_of(name)));
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
    KvHit hit(pool, kv_name_key(root_of(root), bytes_of(name)));
    hit.count(1);
    if (hit.slots.empty()) return nb::none();
    nb::object result = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(hit.nbytes)));
    if (!result.is_valid()) throw nb::python_error();
    char* into = PyBytes_AsString(result.ptr());
    nb::gil_scoped_release release;
    hit.read_value(into);
    return result;
}

static u64 stick(const Pool& pool, nb::bytes root, nb::handle tokens, bool on) {
    pool->need_write();
    KvHit hit = match(pool, root, tokens, false, false);
    nb::gil_scoped_release release;
    hit.stick(on);
    return hit.slots.size();
}

static nb::dict stats(const KvPool& pool) {
    const KvStats stats = pool.stats();
    nb::dict result;
    result["block_bytes"] = stats.block_bytes;
    result["block_tokens"] = stats.block_tokens;
    result["capacity_blocks"] = stats.slots;
    result["blocks"] = stats.live;
    const KvPlaces places = pool.places();
    result["dram_blocks"] = places.dram;
    result["flash_blocks"] = places.flash;
    result["free_blocks"] = stats.free;
    result["filling_blocks"] = stats.filling;
    result["queries"] = stats.queries;
    result["queried_blocks"] = stats.queried_blocks;
    result["hit_blocks"] = stats.hit_blocks;
    result["stored_blocks"] = stats.stored_blocks;
    result["evicted_blocks"] = stats.evicted_blocks;
    result["expired_blocks"] = stats.expired_blocks;
    result["declined_blocks"] = stats.declined_blocks;
    result["fetched_blocks"] = stats.fetched_blocks;
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
    const std::vector<KvKey> result = kv_keys(root_of(root), given.span, block_tokens);
    return nb::bytes(result.data(), result.size() * sizeof(KvKey));
}

void bind_kv(nb::module_& m) {
    bind_kv_hit(m);
    bind_kv_other_hosts(m);
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
        .def("match", match, "root"_a, "tokens"_a, "verify"_a, "count"_a = true)
        .def("present", [](const Pool& pool, nb::bytes root, nb::handle tokens) { return match(pool, root, tokens, false, false).slots.size(); })
        .def("put", put)
        .def("draft", [](const Pool& pool, nb::bytes root, nb::handle tokens, u32 tenant, u64 ttl_ns) {
            Tokens given(tokens);
            KvKey key = root_of(root);
            nb::gil_scoped_release release;
            auto draft = std::make_unique<KvDraft>(pool, key, given.span, tenant, expiry(ttl_ns));
            draft->reserve(draft->blocks());
            return draft;
        })
        .def("draft_to_fetch", [](const Pool& pool, nb::bytes root, nb::handle tokens, u32 tenant) {
            Tokens given(tokens);
            KvKey key = root_of(root);
            nb::gil_scoped_release release;
            return std::make_unique<KvDraft>(pool, key, given.span, tenant, KvDraft::AS_IS);
        })
        .def("draft_value", [](const Pool& pool, nb::bytes root, nb::bytes name, u64 nbytes, u32 tenant, u64 ttl_ns) {
            return std::make_unique<KvDraft>(pool, root_of(root), bytes_of(name), nbytes, tenant, expiry(ttl_ns));
        })
        .def("put_value", put_value)
        .def("get_into", get_into)
        .def("get_value", get_value)
        .def("present_value", [](const Pool& pool, nb::bytes root, nb::bytes name) { return !KvHit(pool, kv_name_key(root_of(root), bytes_of(name))).slots.empty(); })
        .def("evict", [](const Pool& pool, nb::bytes root, nb::handle tokens, u32 keep) {
            KvHit hit = match(pool, root, tokens, false, false);
            nb::gil_scoped_release release;
            return kv_evict(std::move(hit), keep);
        })
        .def("evict_value", [](const Pool& pool, nb::bytes root, nb::bytes name) { return kv_evict(KvHit(pool, kv_name_key(root_of(root), bytes_of(name))), 0); })
        .def("stick", stick)
        .def("clear", [](KvPool& pool, std::optional<std::string_view> tenant) { nb::gil_scoped_release release; return pool.clear(tenant ? &*tenant : nullptr); }, "tenant"_a.none())
        .def("stats", stats)
        .def("audit", audit)
        .def("flush", [](const KvPool& pool) { nb::gil_scoped_release release; pool.flush(); })
        .def_prop_ro("durable", &KvPool::durable)
        .def_prop_ro("read_only", [](const KvPool& pool) { return pool.space->read_only(); })
        .def_static("metadata_bytes", [](u64 block_bytes, u32 block_tokens, u32 slots) { return kv_head({block_bytes, block_tokens, slots}).data_at; })
        .def("check_usable", &KvPool::check_usable)
        .def_prop_ro("facts", [](const KvPool& pool) {
            const KvHead& head = pool.head();
            return nb::make_tuple(head.block_bytes, head.block_tokens, head.slots, head.stride);
        });
    m.def("kv_keys", keys);
    m.def("address_of", [](nb::handle array) { return u64(PyBytesOf(array, PyBUF_STRIDES).view.buf); });
}

}  // namespace osf::bind
