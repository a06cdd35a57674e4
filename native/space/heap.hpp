// Memory inside a space: extents of pages, and slabs of equal slots in 64 KiB chunks of pages.
//
// Every block hangs on a root: a word in shared memory that holds its Ref (a pin, a record's field, a stripe's table).
// Taking and freeing a block changes that word and the free map; one word of redo log per lock, naming the root, makes
// the pair atomic against kill -9: whoever takes the dead owner's lock next finishes what the word says. Lists, counts
// and hints are derived and made again then. So nothing is ever scanned for leaks on behalf of a lock, and the cost
// of recovery does not grow with the number of arrays.
#pragma once

#include <functional>

#include "base/layout.hpp"
#include "base/members.hpp"

namespace osf::space {

// Test switch: with recovery off, a dead owner's lock is taken as if nothing had happened and nobody is reaped.
extern std::atomic<bool> recovery;

u32 class_of(u64 bytes);       // smallest class that holds them; bytes <= SLAB_MAX
u64 class_bytes(u32 cls);      // 0: there is no such class
inline u64 class_slots(u32 cls) { return CHUNK / class_bytes(cls); }

// The range of the space itself has no such room, whatever the system could give.
struct NoRun : Error {
    explicit NoRun(const std::string& message) : Error(Code::no_room, message) {}
};

class Heap {
public:
    enum Kind { meta, data };

    void attach(Kind kind, char* base, const Layout& layout, Roots& roots, Members& members, int control_fd, int data_fd);

    // Stores a new block's Ref in root (zero before) or throws no_room. Contents are undefined; a data block has
    // memory behind it. zeroed: true if all of it is known to be zero.
    void take(u64 bytes, u64& root, bool* zeroed = nullptr);
    void take_name(u64 bytes, u64& root);  // meta: from arenas of their own, so that a sweep of records skips names
    void free(u64& root);       // zeroes root; flags in its low bits are ignored
    void take_pages(u64 pages, u64& root) { take_extent(pages, 1, false, root); }

    char* pointer(u64 ref) const { return base_ + offset(ref); }
    u64 offset(u64 ref) const { return ref & EXTENT ? map_.at + extent_page(ref) * PAGE : ref & ~FLAGS; }
    u64 capacity(u64 ref) const { return ref & EXTENT ? extent_pages(ref) * PAGE : class_bytes(chunk(chunk_index(ref)).cls); }
    bool contains(u64 off) const { return off >= map_.at && off < map_.at + map_.pages * PAGE; }

    // Whose block is this? The record at owner * 64, for the data heap; 0 if unknown.
    void set_owner(u64 ref, u32 owner);
    u32 owner(u64 off) const;

    u64 limit() const { return load(pages().limit); }
    u64 used() const { return load(pages().used); }
    u64 largest_run() const;
    void set_limit(u64 pages);  // the caller holds the join lock and has sized the file
    void join_pages(u64 ref);   // of a data block, into huge ones, where the machine can
    void commit_maps(u64 from_pages, u64 to_pages);
    void adopt_memory(u64 pages);    // all of it is there, and holds anything: no block is fresh
    std::function<void(u64 offset)> prepare_chunk;  // instead of giving blocks memory: a keeper does, when they are touched

    // For recovery and verification
    PageHeap& pages() const { return roots_->pages[kind_]; }
    Arena& arena(u32 index) const { return roots_->arenas[kind_][index]; }
    Chunk& chunk(u64 index) const { return reinterpret_cast<Chunk*>(base_ + map_.chunks)[index]; }
    u64* bits() const { return word(map_.bits); }
    u64* slabs() const { return word(map_.slabs); }
    u64* commits() const { return word(map_.commits); }
    u32* owners() const { return reinterpret_cast<u32*>(base_ + map_.owners); }
    u32* slots(u64 index) const { return reinterpret_cast<u32*>(base_ + map_.slots + index * PAGE); }
    u64 chunk_index(u64 off) const { return ((off & ~FLAGS) - map_.at) / CHUNK; }
    u64 chunk_offset(u64 index) const { return map_.at + index * CHUNK; }
    bool is_slab(u64 index) const { return load(slabs()[index / 64], std::memory_order_acquire) >> (index % 64) & 1; }
    bool holds_names(u64 index) const { return kind_ == meta && load(chunk(index).arena) > ARENAS / 2; }
    bool slot_taken(u64 off) const;  // off is a taken slot of a slab, exactly
    void rebuild(u32 arena);         // its derived state, from the chunks
    void commit_chunk(u64 index);    // memory for its descriptor
    void settle();                   // finishes what dead owners of its locks left

private:
    u64* word(u64 at) const { return reinterpret_cast<u64*>(base_ + at); }
    u64& root_at(u64 pending) const { return *reinterpret_cast<u64*>(base_ + (pending & OFFSET)); }
    u64 root_offset(const u64& root) const { return u64(reinterpret_cast<const char*>(&root) - base_); }

    void take_extent(u64 pages, u64 alignment, bool from_top, u64& root);
    void free_extent(u64& root);
    void take_slab(u64 bytes, u64& root, u32 first_arena, u32 arenas);
    bool take_slot(u32 arena_index, u32 cls, u64& root, bool new_chunk);
    void free_slot(u64& root);
    void add_chunk(u32 arena_index, u32 cls);
    void drop_chunk(Arena& arena, u64 index);
    void link(Arena& arena, u64 index);
    void unlink(Arena& arena, u64 index);
    bool find_run(u64 pages, u64 alignment, u64 from, u64& found) const;
    bool find_top(u64& found);
    void set_bits(u64 page, u64 pages, bool value);
    bool grow_meta(u64 pages);
    bool commit(u64 ref);            // memory behind a data extent; true if all of it is fresh

    void lock_pages();
    void lock_arena(u32 index);
    void recover_pages();
    void recover_arena(u32 index);

    Kind kind_ = meta;
    char* base_ = nullptr;
    HeapMap map_{};
    Roots* roots_ = nullptr;
    Members* members_ = nullptr;
    int control_fd_ = -1, data_fd_ = -1;
};

}  // namespace osf::space
