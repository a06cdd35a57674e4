// What is where in a space, byte by byte.
//
// A space is a directory with three files (one with a flash tier has a fourth, tiers/words.hpp), mapped at fixed offsets from one base address:
//
//   base + 0           control   metadata: header, index, free maps, records. Read-only for mode="r"
//   base + members_at  members   who has the space open, and every member's pins. Writable for everybody
//   base + data_at     data      the arrays' bytes. Read-only for mode="r"
//
// control (sparse; a part is allocated before it is touched, so that a full /dev/shm is an error, not a SIGBUS):
//
//   0x0000  Header   one page
//   0x1000  Roots    locks, stripes of the index, arenas and page heaps
//   then, per heap (meta, data), maps sized for the whole reservation:
//     page bits   1 bit a 4 KiB page: allocated
//     slab bits   1 bit a 64 KiB chunk: a slab
//     chunks      256 bytes a chunk: Chunk
//     and for data: commit bits (2 MiB blocks that have memory), page owners (u32), slot owners (1024 u32 a chunk)
//   then the meta heap's own pages: records, names, index tables
//
// A Ref names a block: bit 63 clear, a slab block by its offset from base (multiple of 64, the low six bits
// may carry flags); bit 63 set, an extent: first page of its heap in bits 32..62, pages in bits 0..31.
#pragma once

#include <bit>

#include "base/base.hpp"
#include "base/lock.hpp"

namespace osf {

constexpr u32 VERSION = 5;                   // 4 noted less of calls that are made once
constexpr u64 CHUNK_PAGES = 16, CHUNK = CHUNK_PAGES * PAGE;
constexpr u64 BLOCK = 2 * MIB;              // unit of commitment
constexpr u64 STRIPES = 64, ARENAS = 16;
constexpr u64 CLASSES = 24;
constexpr u64 SLAB_MAX = 8192;              // larger blocks are extents
constexpr u64 MEMBERS = 1024;
constexpr u64 PINS_AT = 1 * MIB, PINS_BYTES = 4 * MIB;  // per member: half a million pins
constexpr u64 NAME_MAX_BYTES = 1024;
constexpr u32 NO_SLOT = ~0u;                // of a pool's blocks, of flash

constexpr u64 OFFSET = 0xffffffffffffull;   // of a root or an index word: from the base
constexpr u64 TABLE = OFFSET & ~63ull;       // of a table word: the rest is its generation and size
constexpr u64 ALLOC = 1ull << 62, FREE = 2ull << 62;  // operations in a redo log
constexpr u64 EXTENT = 1ull << 63;
constexpr u64 FLAGS = 63;
constexpr u64 RELEASING = 1;                // pin: its owner may clear it without looking at the record again
constexpr u64 TRANSIENT = 2;                // pin: of an operation, not of a view; a forked child does not get it

constexpr u64 extent_ref(u64 page, u64 pages) { return EXTENT | page << 32 | pages; }
constexpr u64 extent_page(u64 ref) { return (ref & ~EXTENT) >> 32; }
constexpr u64 extent_pages(u64 ref) { return ref & 0xffffffffu; }

struct Header {
    char magic[16];
    u32 version, header_bytes;
    u64 layout_hash;
    u64 base, reserve;
    u64 created_ns;
    u32 uid, mode;
    u64 page_size;          // of the data backing
    u64 tiers;              // 1: with a flash tier, see tiers/words.hpp
    char boot_id[40];
    char name[72];
    char backing[1024];     // of the data, for people; what is opened is in a file that only the owner can write: base/trusted.hpp
    u64 made;               // bytes of data at first; it may have grown since
    u64 check;              // of everything above
    // changes while the space lives; covered by the seal
    alignas(64) u64 removed;  // 0, or REMOVED
    u64 seal;               // checksum of all metadata, written by the last member to leave; 0 while open
};

struct PageHeap {
    alignas(64) Lock lock;
    u64 pending;            // one-word redo log: offset of a root word | operation
    u64 limit, used;        // pages
    u64 top;                // below this page a chunk may be free
    u64 hint[32];           // below hint[k] there is no free run of 2^k pages
};

struct Arena {
    alignas(64) Lock lock;
    u64 pending, block;     // redo log: offset of a root word | operation, and the block it is about
    u64 incoming;           // extent that is becoming, or has ceased to be, a chunk of this arena
    u32 partial[CLASSES];   // heads of lists of chunks with a free slot: chunk + 1
};

struct Chunk {
    u32 arena, cls;         // arena + 1
    u32 free, next, prev;   // list links: chunk + 1
    u32 unused[3];
    u64 bits[16];
    u64 pad[12];
};
static_assert(sizeof(Chunk) == 256);

struct Stripe {
    alignas(64) Lock lock;
    u64 table;              // generation(16) | offset(42 significant of 48) | log2 of the words(6)
    u64 next, old;          // extents: a table being built, a table being freed
    u64 live, used;         // words that point to a record; those and tombstones
    u64 moving, moving_to;  // a rename: the record, and the hash of its name in the other stripe (if it is one: the old)
};

struct Roots {
    alignas(64) Lock collect;
    Stripe stripes[STRIPES];
    PageHeap pages[2];      // meta, data
    Arena arenas[2][ARENAS];
};

// Words far apart: no few bits that flip make one of another, so that damage is not taken for a removal. Zero is a slot's beginning.
enum State : u64 {
    state_free = 0,
    draft = 0x9b25f81fcec1496e,
    live = 0xa1865506aadbf831,
    leaving = 0x76f87a640701ad82,
    gone = 0x994395a774f0147f,
    dead = 0xb41b5669a0729b23,
};
constexpr u64 STATES[] = {state_free, draft, live, leaving, gone, dead};
constexpr u64 REMOVED = 0xfc45228f4bd571b0;  // of Header::removed

constexpr int least_distance(const u64* words, int count) {
    int least = 64;
    for (int a = 0; a < count; a++)
        for (int b = 0; b < a; b++)
            if (int distance = std::popcount(words[a] ^ words[b]); distance < least) least = distance;
    return least;
}
static_assert(least_distance(STATES, 6) >= 28);

// 0 to 5, as Python and other hosts are told; 6: none of them.
constexpr u64 state_number(u64 word) {
    u64 number = 0;
    for (u64 state : STATES) {
        if (word == state) break;
        number++;
    }
    return number;
}
constexpr bool is_state(u64 word) { return state_number(word) < 6; }

// An array's descriptor, in the meta heap; followed by ndim u64 of shape, the dtype text and the name.
struct Record {
    u64 state;              // who may find it: see space/collect.cpp
    u64 data;               // Ref in the data heap
    u64 names[2];           // Refs of Name blocks made by rename
    u64 renamed;            // 0: the inline name counts; n: names[(n - 1) & 1]
    u64 nbytes;
    u64 check;              // of all but state, names and renamed, with the record's own offset
    u16 dtype, descr_len, name_len;
    u8 ndim, kind;
};
static_assert(sizeof(Record) == 64);

struct Name {               // a name given later; words, because readers may race with its reuse
    u64 magic_len;          // NAME_MAGIC << 48 | 32 bits of its hash << 16 | bytes
    u64 words[];
};

struct Member {
    u32 generation, state;  // state: 0 free, 1 used
    u32 high;               // pins [0, high) may be set
    u32 read_only;
    u64 pid, started_ns;    // for people; liveness is a record lock on byte `slot` of the file
    u64 pins_bytes;         // allocated so far
    u8 uuid[16];            // of a process on another host; zeros for one of this host
    u64 remote;             // not 0: stands for a process on another host, alive until a keeper clears the slot; a checksum of
                            // uuid and slot, so that damage makes no ghosts
};
static_assert(sizeof(Member) == 64);

// What became of a remote process's last call in one of its lanes (rpc/calls.hpp); believed only if uuid and id are those of the call.
struct Told {
    u64 id;
    u8 uuid[16];
    u32 phase;              // told_*
    u32 bytes;              // of the answer; one that is longer than `answer` is in the file: Members::keep_answer
    u64 object, after;      // of a call on a barrier or channel: which one, and what its count is when the call is done (space/sync.cpp)
    u64 round;              // of a call on a barrier
    u64 number, record;     // of an array that was received: by which number the caller will know it, and its record
    u32 pin, what;          // 1 + its pin, 0: none was; told_*
    char answer[48];
};
static_assert(sizeof(Told) == 128);
enum ToldPhase : u32 { told_nothing, told_begun, told_done, told_waits };  // the last: in a barrier, whose round has not ended
enum ToldWhat : u32 { told_send, told_receive, told_wait, told_reset };

// How far a remote process's puts by address are. They have numbers, and are done in their order.
struct Written {
    u64 epoch;              // of the connection by which they come: an older one is not heard any more
    u64 progress;           // number of the latest << 24 | its parts that are in memory, or WRITTEN_ALL
    u64 failed[8];          // numbers that were refused, each at its own modulo 8
    u64 unused[6];
};
constexpr u64 WRITTEN_ALL = 0xffffff;
constexpr u64 LANES = 31;
struct Notes {              // a page for each slot
    Told told[LANES];
    Written written;
};
static_assert(sizeof(Notes) == PAGE);
constexpr u64 NOTES_AT = PINS_AT + MEMBERS * PINS_BYTES;
constexpr u64 ANSWER_BYTES = 2 * MIB, ANSWERS_AT = NOTES_AT + MEMBERS * sizeof(Notes);  // read and written, not mapped

struct MembersHead {
    u64 orphans;            // counts events that may leave an array to nobody: a death, a reader's last release
    u64 swept;              // its value when a sweep last began; changed under the collect lock
    u32 slots_high, pad;
};
constexpr u64 MEMBER_AT = 4096;

struct HeapMap { u64 pages, bits, slabs, chunks, commits, owners, slots, at; };  // offsets; pages = reserved pages

struct Layout {
    u64 reserve, roots_at, members_at, members_bytes, members_file_bytes, data_at, control_bytes;
    HeapMap heap[2];
    explicit Layout(u64 reserve_bytes);
    static u64 hash();
    static u64 smallest_reserve();
};

}  // namespace osf
