// The slab half of the heap: equal slots in chunks, chunks owned by arenas so that processes rarely meet.
#include <algorithm>
#include <bit>
#include <fcntl.h>

#include "space/heap.hpp"

namespace osf::space {

// Four sizes per doubling: at most a fifth of a slot is wasted.
constexpr u32 CLASS_BYTES[CLASSES] = {64,   128,  192,  256,  320,  384,  448,  512,  640,  768,  896,  1024, 1280,
                                      1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192};

u64 class_bytes(u32 cls) { return cls < CLASSES ? CLASS_BYTES[cls] : 0; }

u32 class_of(u64 bytes) {
    if (bytes <= 512) return bytes ? u32((bytes - 1) / 64) : 0;
    u32 power = u32(std::bit_width(bytes - 1)) - 1;        // 2^power < bytes <= 2^(power + 1), power >= 9
    u32 quarter = u32((bytes - 1) >> (power - 2)) & 3;
    return 8 + (power - 9) * 4 + quarter;
}

void Heap::attach(Kind kind, char* base, const Layout& layout, Roots& roots, Members& members, int control_fd, int data_fd) {
    kind_ = kind;
    base_ = base;
    map_ = layout.heap[kind];
    roots_ = &roots;
    members_ = &members;
    control_fd_ = control_fd;
    data_fd_ = data_fd;
}

void Heap::lock_arena(u32 index) {
    if (lock_take(arena(index).lock, *members_) == Grant::owner_died && recovery) recover_arena(index);
}

void Heap::recover_arena(u32 index) {
    Arena& arena = this->arena(index);
    if (u64 pending = load(arena.pending)) {
        u64& root = root_at(pending);
        u64 off = load(arena.block);
        // A root that holds another block by now was dealt with, and belongs to somebody else. A dead member's pin may too:
        // its slot is free for a newcomer as soon as it is reaped. The sweep that follows a death finds what it held.
        if (off && (load(root) & (EXTENT | ~FLAGS)) == off && !members_->holds(&root)) {
            Chunk& chunk = this->chunk(chunk_index(off));
            u64 slot = (off - chunk_offset(chunk_index(off))) / class_bytes(chunk.cls);
            bool taking = (pending & FREE) == 0;
            u64 mask = 1ull << (slot % 64), old = load(chunk.bits[slot / 64]);
            store(chunk.bits[slot / 64], taking ? old | mask : old & ~mask);
            step();
            if (!taking) store(root, 0);
        }
        store(arena.pending, 0);
    }
    step();
    if (u64 ref = load(arena.incoming)) {
        u64 chunk = extent_page(ref) / CHUNK_PAGES;
        if (is_slab(chunk)) store(arena.incoming, 0);
        else free_extent(arena.incoming);
    }
    rebuild(index);
}

void Heap::settle() {
    auto abandoned = [&](const Lock& lock) { u32 word = load(lock.word) & ~WAITERS; return word && !members_->alive(word); };
    for (u32 index = 0; index < ARENAS; index++) {
        if (!abandoned(arena(index).lock)) continue;
        lock_arena(index);
        lock_drop(arena(index).lock);
    }
    if (!abandoned(pages().lock)) return;
    lock_pages();
    lock_drop(pages().lock);
}

void Heap::rebuild(u32 index) {
    Arena& arena = this->arena(index);
    std::fill_n(arena.partial, CLASSES, 0);
    u64 words = div_up(load(pages().limit), CHUNK_PAGES * 64);
    for (u64 word = 0; word < words; word++) {
        for (u64 map = load(slabs()[word]); map; map &= map - 1) {
            u64 at = word * 64 + u64(std::countr_zero(map));
            Chunk& chunk = this->chunk(at);
            if (load(chunk.arena) != index + 1) continue;
            u64 taken = 0;
            for (u64& bits : chunk.bits) taken += u64(std::popcount(load(bits)));
            chunk.free = u32(class_slots(chunk.cls) - taken);
            chunk.next = chunk.prev = 0;
            if (chunk.free) link(arena, at);
        }
    }
}

void Heap::link(Arena& arena, u64 index) {
    Chunk& chunk = this->chunk(index);
    chunk.prev = 0;
    chunk.next = arena.partial[chunk.cls];
    if (chunk.next) this->chunk(chunk.next - 1).prev = u32(index + 1);
    arena.partial[chunk.cls] = u32(index + 1);
}

void Heap::unlink(Arena& arena, u64 index) {
    Chunk& chunk = this->chunk(index);
    if (chunk.prev) this->chunk(chunk.prev - 1).next = chunk.next;
    else arena.partial[chunk.cls] = chunk.next;
    if (chunk.next) this->chunk(chunk.next - 1).prev = chunk.prev;
    chunk.next = chunk.prev = 0;
}

void Heap::commit_chunk(u64 index) {
    int error = allocate_file(control_fd_, map_.chunks + index * sizeof(Chunk), sizeof(Chunk));
    if (!error && kind_ == data) error = allocate_file(control_fd_, map_.slots + index * PAGE, PAGE);
    if (error) fail_os("the file system of the space has no memory left for metadata", error);
}

void Heap::add_chunk(u32 arena_index, u32 cls) {
    Arena& arena = this->arena(arena_index);
    take_extent(CHUNK_PAGES, CHUNK_PAGES, true, arena.incoming);
    step();
    u64 index = extent_page(load(arena.incoming)) / CHUNK_PAGES;
    try {
        if (prepare_chunk) prepare_chunk(chunk_offset(index));
        else if (kind_ == data) commit(load(arena.incoming));
        commit_chunk(index);
    } catch (...) {
        free_extent(arena.incoming);
        throw;
    }
    Chunk& chunk = this->chunk(index);
    for (u64& word : chunk.bits) store(word, 0, std::memory_order_relaxed);
    if (kind_ == meta) std::memset(base_ + chunk_offset(index), 0, CHUNK);  // a slot begins as state_free: sweep relies on it
    store(chunk.cls, cls);
    chunk.free = u32(class_slots(cls));
    store(chunk.arena, arena_index + 1);
    if (kind_ == data)
        for (u64 slot = 0; slot < class_slots(cls); slot++) store(slots(index)[slot], 0, std::memory_order_relaxed);
    step();
    std::atomic_ref<u64>(slabs()[index / 64]).fetch_or(1ull << (index % 64));  // from here it is the arena's
    step();
    store(arena.incoming, 0);
    link(arena, index);
}

void Heap::drop_chunk(Arena& arena, u64 index) {
    unlink(arena, index);
    store(arena.incoming, extent_ref(index * CHUNK_PAGES, CHUNK_PAGES));
    step();
    std::atomic_ref<u64>(slabs()[index / 64]).fetch_and(~(1ull << (index % 64)));
    store(chunk(index).arena, 0u);
    step();
    free_extent(arena.incoming);
}

void Heap::take_slab(u64 bytes, u64& root, u32 first_arena, u32 arenas) {
    u32 cls = class_of(bytes), own = first_arena + members_->slot() % arenas;
    try {
        take_slot(own, cls, root, true);
    } catch (const Error& error) {
        if (error.code != Code::no_room) throw;
        for (u32 index = first_arena; index < first_arena + arenas; index++)  // no chunk to be had: others' free slots
            if (take_slot(index, cls, root, false)) return;
        throw;
    }
}

bool Heap::take_slot(u32 arena_index, u32 cls, u64& root, bool new_chunk) {
    lock_arena(arena_index);
    Arena& arena = this->arena(arena_index);
    if (!arena.partial[cls]) {
        try {
            if (new_chunk) add_chunk(arena_index, cls);
        } catch (...) {
            lock_drop(arena.lock);
            throw;
        }
        if (!arena.partial[cls]) {
            lock_drop(arena.lock);
            return false;
        }
    }
    u64 index = arena.partial[cls] - 1, word = 0;
    Chunk& chunk = this->chunk(index);
    while (load(chunk.bits[word], std::memory_order_relaxed) == ~0ull) word++;
    u64 bit = u64(std::countr_one(load(chunk.bits[word], std::memory_order_relaxed)));
    u64 off = chunk_offset(index) + (word * 64 + bit) * class_bytes(cls);
    store(arena.block, off);
    store(arena.pending, root_offset(root) | ALLOC);
    step();
    // The root may be a pin: it must be seen before the slot counts as taken.
    store(root, off | (load(root) & FLAGS), std::memory_order_seq_cst);
    step();
    store(chunk.bits[word], load(chunk.bits[word]) | 1ull << bit);
    step();
    store(arena.pending, 0);
    step();
    if (--chunk.free == 0) unlink(arena, index);
    lock_drop(arena.lock);
    return true;
}

void Heap::free_slot(u64& root) {
    u64 off, index;
    u32 owner;
    for (;;) {
        off = load(root) & ~FLAGS;
        if (!off) return;  // whoever recovered its arena finished a dead process's free of it
        index = chunk_index(off);
        owner = load(chunk(index).arena);
        if (!owner) continue;  // likewise, and the chunk is gone; the root went before
        lock_arena(owner - 1);
        if ((load(root) & ~FLAGS) == off && load(chunk(index).arena) == owner) break;
        lock_drop(arena(owner - 1).lock);
    }
    Chunk& chunk = this->chunk(index);
    Arena& arena = this->arena(owner - 1);
    u64 slot = (off - chunk_offset(index)) / class_bytes(chunk.cls);
    store(arena.block, off);
    store(arena.pending, root_offset(root) | FREE);
    step();
    store(chunk.bits[slot / 64], load(chunk.bits[slot / 64]) & ~(1ull << (slot % 64)));
    step();
    store(root, 0);
    step();
    store(arena.pending, 0);
    step();
    if (chunk.free++ == 0) link(arena, index);
    // Keep one empty chunk of a class, so that one array put and deleted in turn does not move chunks to and fro.
    if (chunk.free == class_slots(chunk.cls) && (chunk.next || chunk.prev)) drop_chunk(arena, index);
    lock_drop(arena.lock);
}

bool Heap::slot_taken(u64 off) const {
    if (!contains(off) || off % 64) return false;
    u64 index = chunk_index(off);
    if (index >= load(pages().limit) / CHUNK_PAGES || !is_slab(index)) return false;
    const Chunk& chunk = this->chunk(index);
    u64 within = off - chunk_offset(index), bytes = class_bytes(load(chunk.cls));
    if (!bytes || within % bytes || within / bytes >= class_slots(chunk.cls)) return false;
    u64 slot = within / bytes;
    return load(chunk.bits[slot / 64]) >> (slot % 64) & 1;
}

void Heap::set_owner(u64 ref, u32 owner) {
    if (ref & EXTENT) {
        u32* at = owners() + extent_page(ref);
        for (u64 page = 0; page < extent_pages(ref); page++) store(at[page], owner, std::memory_order_relaxed);
    } else {
        u64 index = chunk_index(ref);
        store(slots(index)[((ref & ~FLAGS) - chunk_offset(index)) / class_bytes(chunk(index).cls)], owner,
              std::memory_order_relaxed);
    }
}

u32 Heap::owner(u64 off) const {
    u64 index = chunk_index(off);
    if (is_slab(index)) {
        u64 bytes = class_bytes(load(chunk(index).cls)), slot = (off - chunk_offset(index)) / (bytes ? bytes : 64);
        return slot < 1024 ? load(slots(index)[slot]) : 0;
    }
    return load(owners()[(off - map_.at) / PAGE]);
}

}  // namespace osf::space
