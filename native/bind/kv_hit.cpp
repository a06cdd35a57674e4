// Hits and drafts of KV pools for Python; conversions only.
#include "bind/kv.hpp"

#include "bind/space.hpp"

namespace osf::bind {

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
        .def("prefetch", [](KvHit& hit) { nb::gil_scoped_release release; hit.prefetch(); })
        .def("count", &KvHit::count)
        .def("offset", offset_of)
        .def("writable", [](nb::object self) { return Writable{self}; })
        .def("read", [](const KvHit& hit, u64 block, u64 count, u64 first_piece, u64 piece_bytes, nb::handle addresses, u64 step, nb::handle table) {
            Pieces into(addresses, first_piece, piece_bytes, step, table);
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
        .def("write", [](KvDraft& draft, u64 first, u64 first_piece, u64 piece_bytes, nb::handle addresses, u64 step, nb::handle table) {
            Pieces from(addresses, first_piece, piece_bytes, step, table);
            nb::gil_scoped_release release;
            draft.write(first, from.pieces);
        })
        .def("catch_up", [](KvDraft& draft) { nb::gil_scoped_release release; draft.catch_up(); })
        .def("keys", [](const KvDraft& draft) {  // of the blocks that are not there
            return nb::bytes(draft.next() < draft.blocks() ? &draft.key(draft.next()) : nullptr, (draft.blocks() - draft.next()) * sizeof(KvKey));
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

void bind_kv_hit(nb::module_& m) {
    bind_hit(m);
    bind_draft(m);
}

}  // namespace osf::bind
