#include "base/layout.hpp"

#include <cstddef>

namespace osf {

Layout::Layout(u64 reserve_bytes) : reserve(reserve_bytes) {
    // The reservation is split so that metadata never runs out before data: a thirty-second for the meta heap,
    // less than a quarter for it and all maps (address space, not memory).
    members_bytes = ANSWERS_AT;
    members_file_bytes = ANSWERS_AT + MEMBERS * LANES * ANSWER_BYTES;
    u64 control_room = align_up(reserve / 4, GIB);
    members_at = control_room;
    data_at = members_at + align_up(members_bytes, GIB);
    roots_at = PAGE;
    u64 at = align_up(roots_at + sizeof(Roots), PAGE);
    u64 pages[2] = {align_up(reserve / 32, MIB) / PAGE, (reserve - data_at) / BLOCK * BLOCK / PAGE};
    for (int h = 0; h < 2; h++) {
        HeapMap& map = heap[h];
        map.pages = pages[h];
        u64 chunk_count = div_up(pages[h], CHUNK_PAGES);
        auto take = [&](u64 bytes) { u64 was = at; at += align_up(bytes, PAGE); return was; };
        map.bits = take(pages[h] / 8 + 8);
        map.slabs = take(chunk_count / 8 + 8);
        map.chunks = take(chunk_count * sizeof(Chunk));
        map.commits = take(pages[h] * PAGE / BLOCK / 8 + 8);
        map.owners = h ? take(pages[h] * 4) : 0;
        map.slots = h ? take(chunk_count * PAGE) : 0;
    }
    at = align_up(at, CHUNK);
    heap[0].at = at;
    control_bytes = at + heap[0].pages * PAGE;
    heap[1].at = data_at;
    if (control_bytes > 64ull << 32)  // owners of blocks are record offsets in 32 bits of 64 bytes
        throw Error(Code::bad_input, "a space reserves at most 2 TiB of addresses, got " + std::to_string(reserve_bytes) + " bytes");
    if (control_bytes > control_room || data_at >= reserve)
        throw Error(Code::bad_input, "a space reserves at least " + std::to_string(smallest_reserve() / GIB) +
                                         " GiB of addresses, got " + std::to_string(reserve_bytes) + " bytes");
}

u64 Layout::smallest_reserve() { return 32 * GIB; }

u64 Layout::hash() {
    u64 facts[] = {sizeof(Header), offsetof(Header, check), offsetof(Header, seal), sizeof(Roots), sizeof(Stripe),
                   sizeof(Arena), sizeof(PageHeap), sizeof(Chunk), sizeof(Record), sizeof(Member), CHUNK, BLOCK, STRIPES,
                   ARENAS, CLASSES, SLAB_MAX, MEMBERS, PINS_AT, PINS_BYTES, LANES, sizeof(Told), ANSWER_BYTES, offsetof(Roots, stripes),
                   offsetof(Roots, pages), offsetof(Roots, arenas)};
    return hash_bytes(facts, sizeof facts, VERSION);
}

}  // namespace osf
