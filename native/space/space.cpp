// Arrays: made as drafts, published by one word in the index, found without a lock, removed, renamed.
#include "space/space.hpp"

#include "space/sync.hpp"

#include <algorithm>
#include <unordered_map>

namespace osf::space {

u64 record_check(const Record& record, u64 offset) {
    u64 facts[] = {record.data, record.nbytes, u64(record.dtype) << 48 | u64(record.descr_len) << 32 | u64(record.name_len) << 16 |
                                                   u64(record.ndim) << 8 | record.kind, offset};
    u64 seed = hash_bytes(facts, sizeof facts, VERSION);
    return hash_bytes(&record + 1, record_bytes(record) - sizeof(Record), seed);
}

void Space::check_name(std::string_view name) const {
    if (name.empty() || name.size() > NAME_MAX_BYTES)
        throw Error(Code::bad_input, "a name has 1 to " + std::to_string(NAME_MAX_BYTES) + " bytes of UTF-8, got " + std::to_string(name.size()));
}

// `why`: what the system refused, where the space itself has room; deleting arrays would not help there.
void Space::no_room(u64 wanted, const std::string& why) {
    u64 limit = data.limit() * PAGE, free_bytes = limit - data.used() * PAGE;
    std::string found = "no room for " + std::to_string(wanted) + " bytes in the space '" + header().name + "': ";
    std::string room = std::to_string(free_bytes) + " of " + std::to_string(limit) + " bytes are free";
    if (!why.empty()) throw Error(Code::no_room, found + why + "; in the space itself " + room);
    found += room + ", the longest run has " + std::to_string(data.largest_run() * PAGE);
    if (wanted > layout.reserve) found += ", and there are addresses for " + std::to_string(layout.reserve);
    throw Error(Code::no_room, found + "; delete arrays or KV pools (`openshelf ls` has their sizes), close views of deleted ones, or grow the space");
}

Held Space::make(const Spec& spec, bool zero) {
    need_write();
    if (!spec.name.empty()) check_name(spec.name);
    if (spec.shape.size() > 64 || spec.descr.size() > 4096)
        throw Error(Code::bad_input, "an array has at most 64 dimensions and a dtype description of 4096 bytes");
    if (spec.nbytes > layout.reserve) no_room(spec.nbytes, "");
    Held held;
    for (int attempt = 0;; attempt++) {
        try {
            try_make(spec, zero, held);
            return held;
        } catch (const NoRun&) {
            if (attempt) no_room(spec.nbytes, "");
        } catch (const Error& error) {
            if (error.code != Code::no_room) throw;
            if (attempt) no_room(spec.nbytes, error.what());
        }
        collect();
    }
}

void Space::try_make(const Spec& spec, bool zero, Held& held) {
    u32 pin = members.take_pin();
    u64& root = members.pin(pin);
    store(root, TRANSIENT);
    u64 bytes = sizeof(Record) + 8 * spec.shape.size() + spec.descr.size() + spec.name.size();
    try {
        meta.take(bytes, root);
    } catch (...) {
        drop(pin);
        throw;
    }
    u64 offset = load(root) & ~FLAGS;
    Record& record = this->record(offset);  // its words are zero: state_free, no refs
    record.nbytes = spec.nbytes;
    record.dtype = spec.dtype;
    record.kind = spec.kind;
    record.ndim = u8(spec.shape.size());
    record.descr_len = u16(spec.descr.size());
    record.name_len = u16(spec.name.size());
    char* at = record_inline(record);
    if (!spec.shape.empty()) std::memcpy(at, spec.shape.data(), 8 * spec.shape.size());
    at += 8 * spec.shape.size();
    std::memcpy(at, spec.descr.data(), spec.descr.size());
    std::memcpy(at + spec.descr.size(), spec.name.data(), spec.name.size());
    store(record.state, u64(draft));
    step();
    bool zeroed = false;
    try {
        data.take(std::max<u64>(spec.nbytes, 1), record.data, &zeroed);
    } catch (...) {
        retire(pin, 0);
        throw;
    }
    step();
    u64 ref = load(record.data);
    data.set_owner(ref, u32(offset / 64));
    // Recycled memory is cleared here; where the caller overwrites the array, only what lies behind it.
    char* block = data.pointer(ref);
    u64 keep = zero ? 0 : spec.nbytes;
    if (pager) pager->clear(block, data.capacity(ref), keep);
    else if (!zeroed) std::memset(block + keep, 0, data.capacity(ref) - keep);
    // What native code uses never leaves memory; of a pool that is not all, and its maker sees to it.
    if (pager && spec.kind && spec.kind != kind_pool && ref & EXTENT) pager->provide(block, data.capacity(ref));
    record.check = record_check(record, offset);
    if (spec.name.empty()) store(record.state, u64(gone));
    step();
    held = {pin, offset};
}

void Space::write(const Held& held, const void* from, u64 bytes) {
    char* to = this->bytes(held);
    if (!pager) std::memcpy(to, from, bytes);
    else if (bytes) pager->within(to, bytes, [&](char* part, u64 size) { std::memcpy(part, static_cast<const char*>(from) + (part - to), size); });
}

void Space::publish(const Held& held, bool replace) {
    need_write();
    Record& record = this->record(held);
    std::string name = name_of(held);
    u64 hash = hash_name(name);
    u32 pin = members.take_pin();
    u64 replaced = 0;
    index.lock(Index::stripe_of(hash));
    try {
        if (name.empty()) throw Error(Code::bad_input, "an unnamed array is published by giving it a name: publish(name)");
        if (load(record.state) != draft) throw Error(Code::bad_input, "'" + name + "' is published already, or was deleted since");
        Found old = index.find(hash, name);
        if (!old.record) {
            index.insert(hash, held.record);
            store(record.state, u64(live), std::memory_order_seq_cst);
        } else {
            if (!replace) throw Error(Code::name_taken, "'" + name + "' exists already in the space '" + header().name + "'; delete it first or ask to replace it");
            Record& other = this->record(old.record);
            if (other.kind) throw Error(Code::name_taken, "'" + name + "' is no array but a lock, barrier, channel, counter, KV pool or table of the space '" + header().name + "'; delete it first");
            replaced = other.nbytes;
            swap(members.pin(pin), old.record | TRANSIENT);
            step();
            swap(other.state, u64(leaving));
            step();
            index.replace(hash, old.position, held.record);
            store(record.state, u64(live), std::memory_order_seq_cst);
            step();
            store(other.state, u64(gone), std::memory_order_seq_cst);
            step();
        }
    } catch (...) {
        index.unlock(Index::stripe_of(hash));
        drop(pin);
        throw;
    }
    index.unlock(Index::stripe_of(hash));
    if (load(members.pin(pin))) retire(pin, replaced);
    else members.give_pin(pin);
}

bool Space::remove(std::string_view name, u64 only, bool careful) {
    need_write();
    u64 hash = hash_name(name);
    u32 pin = members.take_pin();
    index.lock(Index::stripe_of(hash));
    Found found = index.find(hash, name);
    if (only && found.record != only) found = {};
    bool excepted = found.record && careful && has_arrays(this->record(found.record).kind);
    u64 bytes = 0;
    if (found.record && !excepted) {
        Record& record = this->record(found.record);
        bytes = record.nbytes;
        swap(members.pin(pin), found.record | TRANSIENT);
        step();
        swap(record.state, u64(leaving));
        step();
        index.erase(hash, found.position);
        store(record.state, u64(gone), std::memory_order_seq_cst);
        step();
    }
    index.unlock(Index::stripe_of(hash));
    if (found.record && !excepted) retire(pin, bytes);
    else members.give_pin(pin);
    if (excepted) throw Error(Code::bad_input, "'" + std::string(name) + "' must be emptied before it can be removed");
    return found.record != 0;
}

// A block for another name, in the slot of the record that is not in use. Nobody else renames the record meanwhile.
void Space::new_name(Record& record, std::string_view name) {
    u64& root = record.names[load(record.renamed) & 1];
    if (load(root)) meta.free(root);
    meta.take_name(8 + align_up(name.size(), 8), root);
    step();
    Name& block = *reinterpret_cast<Name*>(meta.pointer(load(root)));
    for (u64 at = 0; at < name.size(); at += 8) {
        u64 word = 0;
        std::memcpy(&word, name.data() + at, std::min<u64>(8, name.size() - at));
        store(block.words[at / 8], word, std::memory_order_relaxed);
    }
    store(block.magic_len, name_head(name));
}

void Space::rename(std::string_view from, std::string_view to) {
    need_write();
    check_name(to);
    u64 from_hash = hash_name(from), to_hash = hash_name(to);
    u64 first = Index::stripe_of(from_hash), second = Index::stripe_of(to_hash);
    if (first > second) std::swap(first, second);
    index.lock(first);
    if (second != first) index.lock(second);
    auto unlock = [&] {
        if (second != first) index.unlock(second);
        index.unlock(first);
    };
    try {
        Found found = index.find(from_hash, from);
        if (!found.record) throw Error(Code::unknown_name, std::string(from));
        if (from != to) {
            if (index.find(to_hash, to).record)
                throw Error(Code::name_taken, "cannot rename '" + std::string(from) + "': '" + std::string(to) + "' exists already in the space '" + header().name + "'");
            Record& record = this->record(found.record);
            new_name(record, to);
            index.move(from_hash, to_hash, record, load(record.renamed) + 1);
        }
    } catch (...) {
        unlock();
        throw;
    }
    unlock();
}

void Space::name(const Held& held, std::string_view name) {
    need_write();
    check_name(name);
    Record& record = this->record(held);
    if (!cas(record.state, u64(gone), u64(draft)))
        throw Error(Code::bad_input, "the array has the name '" + name_of(held) + "' already; publish() a draft without another name, rename() a published one");
    step();
    u64 hash = hash_name(name);
    index.lock(Index::stripe_of(hash));
    try {
        if (index.find(hash, name).record)
            throw Error(Code::name_taken, "'" + std::string(name) + "' exists already in the space '" + header().name + "'");
        new_name(record, name);
        store(record.renamed, load(record.renamed) + 1, std::memory_order_seq_cst);
        step();
        index.insert(hash, held.record);
        store(record.state, u64(live), std::memory_order_seq_cst);
        step();
    } catch (...) {
        store(record.state, u64(gone), std::memory_order_seq_cst);
        index.unlock(Index::stripe_of(hash));
        throw;
    }
    index.unlock(Index::stripe_of(hash));
}

Held Space::find(std::string_view name) {
    check_usable();
    u32 pin = members.take_pin();
    u64 record = index.find_and_pin(hash_name(name), name, members.pin(pin));
    if (!record) members.give_pin(pin);
    return {pin, record};
}

Held Space::at(u64 address) {
    check_usable();
    u64 offset = address - u64(base_);
    auto fail = [&](const char* why) {
        char text[300];
        std::snprintf(text, sizeof text, "address %#llx is %s of the space '%s' (data at %#llx to %#llx)", (unsigned long long)address, why,
                      header().name, (unsigned long long)(u64(base_) + layout.data_at),
                      (unsigned long long)(u64(base_) + layout.data_at + data.limit() * PAGE));
        throw Error(Code::bad_address, text);
    };
    if (address < u64(base_) + layout.data_at || offset >= layout.data_at + data.limit() * PAGE) fail("outside the data");
    u64 record = u64(data.owner(offset)) * 64;
    if (!record || !meta.contains(record)) fail("in no array");
    u32 pin = members.take_pin();
    swap(members.pin(pin), record | RELEASING);
    u64 state = meta.slot_taken(record) ? load(this->record(record).state) : u64(state_free);
    u64 ref = load(this->record(record).data);
    bool here = is_state(state) && state != state_free && state != dead && ref && u64(data.owner(offset)) * 64 == record &&
                offset >= data.offset(ref) && offset < data.offset(ref) + data.capacity(ref);
    if (!here) {
        drop(pin);
        fail("in no array");
    }
    store(members.pin(pin), record);
    return {pin, record};
}

std::vector<u64> Space::shape_of(const Held& held) const {
    const Record& record = this->record(held);
    std::vector<u64> shape(record.ndim);
    if (record.ndim) std::memcpy(shape.data(), &record + 1, 8u * record.ndim);
    return shape;
}

std::string Space::descr_of(const Held& held) const {
    const Record& record = this->record(held);
    return {reinterpret_cast<const char*>(&record + 1) + 8u * record.ndim, record.descr_len};
}

std::vector<Entry> Space::list(std::string_view prefix) {
    check_usable();
    std::vector<Entry> entries;
    u32 pin = members.take_pin();
    for (u64 stripe = 0; stripe < STRIPES; stripe++) {
        std::unordered_map<u64, Entry> seen;
        index.each(stripe, members.pin(pin), [&](u64 offset) {
            Held held{pin, offset};
            u64 renamed = load(record(offset).renamed);
            std::string name = name_of(held);
            if (load(record(offset).renamed) != renamed || !name.starts_with(prefix)) return;
            if (Index::stripe_of(hash_name(name)) != stripe) return;  // a rename's other word: shown where it belongs
            const Record& rec = record(offset);
            seen[offset] = {name, rec.nbytes, u64(bytes(held)), rec.dtype, rec.kind, shape_of(held), descr_of(held)};
        });
        for (auto& item : seen) entries.push_back(std::move(item.second));
    }
    members.give_pin(pin);
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
    return entries;
}

Stats Space::stats() const {
    const Header& head = header();
    Stats result{head.name, head.backing, head.base, head.reserve, head.created_ns, head.page_size, head.base + layout.data_at,
                 data.limit() * PAGE, (data.limit() - data.used()) * PAGE, data.largest_run() * PAGE, layout.heap[1].pages * PAGE,
                 meta.limit() * PAGE, index.live(), head.mode, removed(), read_only_, {}};
    for (u32 slot = 0; slot < members.slots_high(); slot++) {
        const Member& member = members.at(slot);
        if (load(member.state) != 1) continue;
        u64 pins = 0;
        for (u32 pin = 0; pin < members.pins_high(slot); pin++) pins += load(members.pins(slot)[pin]) != 0;
        result.members.push_back({slot, member.pid, pins, load(member.remote) != 0, member.read_only != 0, members.slot_locked(slot)});
    }
    return result;
}

}  // namespace osf::space
