// Metadata at rest and after a crash of everybody: sealed by the last to leave, verified or repaired by the first to come.
//
// A seal is a checksum of all metadata; a space that was closed in order is opened by comparing it. Without a seal (the
// last process was killed) everything is made again from the index: header, table words and records are checked, all
// free maps are derived. The same walk, with the members' pins as roots too, is the audit that tests use.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>
#include <unordered_map>

#include "space/device.hpp"
#include "space/space.hpp"

namespace osf::space {

struct ChunkMark {
    u32 cls = 0;
    bool names = false;
    u64 bits[16] = {};
};

struct Space::Marks {
    const Space& space;
    std::vector<u64> extents[2];
    std::unordered_map<u64, ChunkMark> chunks[2];
    bool strict;                 // from the index alone, and any damage throws
    std::vector<u64*> stale;     // words that a rename left behind
    std::vector<u64*> spare;     // names that records do not go by
    std::vector<u64> records;
    Audit found;

    Marks(const Space& of, bool no_pins) : space(of), strict(no_pins) {
        for (int h = 0; h < 2; h++) extents[h].resize(div_up(of.layout.heap[h].pages, 64) + 1);
    }

    [[noreturn]] void damaged(const std::string& what) const {
        throw Error(Code::corrupt, "the metadata of the space at " + space.directory() + " is damaged: " + what + "; remove the space");
    }

    void extent(int h, u64 ref) {
        u64 page = extent_page(ref), count = extent_pages(ref);
        if (!count || page + count > heap(h).limit()) damaged("a block lies outside the heap");
        for (u64 at = page; at < page + count; at++) {
            if (extents[h][at / 64] >> (at % 64) & 1) damaged("two blocks overlap");
            extents[h][at / 64] |= 1ull << (at % 64);
        }
    }

    // False if it was marked before.
    bool slot(int h, u64 offset, u64 bytes, bool names) {
        if (!heap(h).contains(offset) || offset % 64 || bytes > SLAB_MAX) damaged("a block lies outside the heap");
        u64 index = heap(h).chunk_index(offset), within = offset - heap(h).chunk_offset(index);
        u32 cls = class_of(bytes);
        if ((index + 1) * CHUNK_PAGES > heap(h).limit() || within % class_bytes(cls) || within / class_bytes(cls) >= class_slots(cls))
            damaged("a block is not where a slot can be");
        auto [at, fresh] = chunks[h].try_emplace(index);
        ChunkMark& mark = at->second;
        if (fresh) {
            mark.cls = cls;
            mark.names = names;
        }
        if (mark.cls != cls || mark.names != names) damaged("blocks of different sizes share a chunk");
        u64 slot = within / class_bytes(cls), bit = 1ull << (slot % 64);
        if (mark.bits[slot / 64] & bit) return false;
        mark.bits[slot / 64] |= bit;
        return true;
    }

    const Heap& heap(int h) const { return h ? space.data : space.meta; }

    void block(int h, u64 ref, u64 bytes, bool names) {
        if ((ref & EXTENT) != (bytes > SLAB_MAX ? EXTENT : 0)) damaged("a block is of the wrong kind");
        if (ref & EXTENT) {
            if (extent_pages(ref) != div_up(bytes, PAGE)) damaged("a block has the wrong size");
            extent(h, ref);
        } else if (!slot(h, ref & ~FLAGS, bytes, names)) {
            damaged("two arrays share a block");
        }
    }

    void visit(u64 offset, bool indexed) {
        if (offset % 64 || !space.meta.contains(offset) || offset + sizeof(Record) > space.layout.control_bytes) damaged("a name leads outside the heap");
        const Record& record = space.record(offset);
        u64 bytes = record_bytes(record);
        if (bytes > SLAB_MAX || offset + bytes > space.layout.control_bytes) damaged("a record is too long");
        if (record.check != record_check(record, offset)) {
            found.damaged++;
            if (indexed) damaged("a record fails its checksum");
            return;
        }
        if (!slot(0, offset, bytes, false)) return;
        block(1, load(record.data), std::max<u64>(record.nbytes, 1), false);
        for (int which = 0; which < 2; which++) {
            u64 ref = load(record.names[which]);
            if (!ref) continue;
            if (ref % 64 || !space.meta.contains(ref)) damaged("a name lies outside the heap");
            bool current = load(record.renamed) && ((load(record.renamed) - 1) & 1) == u64(which);
            if (!current) {  // of an earlier name, or of one that did not come to be
                if (strict) spare.push_back(const_cast<u64*>(&record.names[which]));
                else if (!space.meta.slot_taken(ref)) found.missing_blocks++;
                else block(0, ref, class_bytes(space.meta.chunk(space.meta.chunk_index(ref)).cls), true);
                continue;
            }
            u64 head = load(reinterpret_cast<const Name*>(space.meta.pointer(ref))->magic_len), length = head & 0xffff;
            if (!length || length > NAME_MAX_BYTES || head != name_head(space::name_of(record, space.meta))) damaged("a name fails its checksum");
            block(0, ref, 8 + align_up(length, 8), true);
        }
        records.push_back(offset);
        found.bytes += record.nbytes;
    }

    void index() {
        for (u64 at = 0; at < STRIPES; at++) {
            const Stripe& stripe = space.index.stripe(at);
            u64 table = load(stripe.table), offset = table & TABLE, words = 1ull << (table & 63);
            if (offset % PAGE || !space.meta.contains(offset) || (table & 63) > 32 || words * 8 < PAGE) damaged("an index table lies outside the heap");
            extent(0, extent_ref((offset - space.layout.heap[0].at) / PAGE, words * 8 / PAGE));
            u64 empty = 0, used = 0;
            for (u64 position = 0; position < words; position++) {
                u64* word = const_cast<u64*>(space.index.words(table)) + position;
                u64 value = load(*word);
                empty += value == 0;
                if (value <= 1) continue;
                used++;
                visit(value & OFFSET, true);
                u64 hash = hash_name(space::name_of(space.record(value & OFFSET), space.meta));
                bool proper = hash >> 48 == value >> 48 && Index::stripe_of(hash) == at && leads_to(table, hash, value, position);
                if (proper) found.arrays++;
                else stale.push_back(word);
            }
            if (!empty) damaged("an index table has no empty word");
            // Who is killed while changing a stripe leaves its lock held; otherwise the count is exact.
            if (strict && !load(stripe.lock.word) && used != load(stripe.live)) damaged("an index table lost or gained words");
        }
        if (!strict) return;
        for (u64* word : stale) {  // only after a rename, when the record has its proper word too
            u64 record = load(*word) & OFFSET, hash = hash_name(space::name_of(space.record(record), space.meta));
            if (!space.index.points(hash, record)) damaged("a name lost its place in the index");
        }
    }

    // Would a search for the word end at this position?
    bool leads_to(u64 table, u64 hash, u64 value, u64 position) const {
        u64 mask = (1ull << (table & 63)) - 1;
        for (u64 at = hash / STRIPES; (at & mask) != position; at++) {
            u64 word = load(space.index.words(table)[at & mask]);
            if (word == 0 || word == value) return false;
        }
        return true;
    }

    // A live record is in the index at every moment, so one that is not lost its word to damage. Nor is one dropped whose state
    // is none that a process wrote. Records are known by their checksums, which cover their places; holes of the file are not
    // touched, that would fill them.
    void lost(int control) {
        std::sort(records.begin(), records.end());
        const u64 start = space.layout.heap[0].at, end = space.layout.control_bytes;
        for (off_t at = off_t(start); (at = lseek(control, at, SEEK_DATA)) >= 0;) {
            off_t hole = lseek(control, at, SEEK_HOLE);
            if (hole < 0) break;
            for (u64 offset = align_up(u64(at), 64); offset + sizeof(Record) <= std::min(u64(hole), end); offset += 64) {
                const Record& record = space.record(offset);
                const u64 state = load(record.state);
                if ((is_state(state) && state != live) || std::binary_search(records.begin(), records.end(), offset)) continue;
                u64 bytes = record_bytes(record);
                if (bytes <= SLAB_MAX && offset + bytes <= u64(hole) && record.check == record_check(record, offset))
                    damaged("an array lost its place in the index");
            }
            at = hole;
        }
    }

    void pins() {
        for (u32 slot = 0; slot < space.members.slots_high(); slot++) {
            if (load(space.members.at(slot).state) != 1) continue;
            for (u32 pin = 0; pin < space.members.pins_high(slot); pin++) {
                u64 offset = load(space.members.pins(slot)[pin]) & ~FLAGS;
                if (!offset || space.data.contains(offset)) continue;  // the latter holds a block of a KV pool, whose array has its own
                if (!space.meta.slot_taken(offset)) found.missing_blocks++;
                else visit(offset, false);
            }
        }
    }
};

Space::Marks Space::mark(bool pins) const {
    Marks marks(*this, !pins);
    marks.index();
    if (pins) marks.pins();
    else marks.lost(control_fd_);
    return marks;
}

void Space::verify() const { mark(false); }

Audit Space::audit() {
    check_usable();
    collect();
    Marks marks = mark(true);
    Audit& found = marks.found;
    for (int h = 0; h < 2; h++) {
        const Heap& heap = h ? data : meta;
        u64 limit = heap.limit();
        for (u64 page = 0; page < limit; page++) {
            bool slab = heap.is_slab(page / CHUNK_PAGES);
            bool wanted = slab || (marks.extents[h][page / 64] >> (page % 64) & 1);
            bool taken = load(heap.bits()[page / 64]) >> (page % 64) & 1;
            if (taken && !wanted) found.leaked_blocks++, found.leaked_bytes += PAGE;
            if (wanted && !taken) found.missing_blocks++;
        }
        for (u64 at_chunk = 0; at_chunk < limit / CHUNK_PAGES; at_chunk++) {
            auto at = marks.chunks[h].find(at_chunk);
            if (!heap.is_slab(at_chunk)) {
                if (at != marks.chunks[h].end()) found.missing_blocks++;
                continue;
            }
            const Chunk& chunk = heap.chunk(at_chunk);
            if (at != marks.chunks[h].end() && at->second.cls != chunk.cls) found.missing_blocks++;
            u64 free_slots = class_slots(chunk.cls);
            for (u64 word = 0; word < 16; word++) {
                free_slots -= u64(std::popcount(load(chunk.bits[word])));
                u64 wanted = at == marks.chunks[h].end() ? 0 : at->second.bits[word], taken = load(chunk.bits[word]);
                u64 leaked = u64(std::popcount(taken & ~wanted));
                found.leaked_blocks += leaked;
                found.leaked_bytes += leaked * class_bytes(chunk.cls);
                found.missing_blocks += u64(std::popcount(wanted & ~taken));
            }
            if (load(chunk.free) != free_slots) found.damaged++;
        }
    }
    return found;
}

u64 Space::seal_value() const {
    u64 hash = 1;
    auto add = [&](const void* at, u64 size) { hash = hash_bytes(at, size, hash); };
    add(&roots(), sizeof(Roots));
    for (int h = 0; h < 2; h++) {
        const Heap& heap = h ? data : meta;
        u64 limit = std::min(heap.limit(), layout.heap[h].pages);
        add(heap.bits(), limit / 8);
        add(heap.slabs(), limit / CHUNK_PAGES / 8);
        add(heap.commits(), limit * PAGE / BLOCK / 8 + 1);
        if (h) add(heap.owners(), limit * 4);
        for (u64 at_chunk = 0; at_chunk < limit / CHUNK_PAGES; at_chunk++) {
            if (!heap.is_slab(at_chunk)) continue;
            add(&heap.chunk(at_chunk), sizeof(Chunk));
            if (h) add(heap.slots(at_chunk), PAGE);
        }
    }
    u64 limit = std::min(meta.limit(), layout.heap[0].pages);
    for (u64 page = 0; page < limit; page++)
        if (load(meta.bits()[page / 64]) >> (page % 64) & 1) add(base_ + layout.heap[0].at + page * PAGE, PAGE);
    return hash | 1;
}

// A block that nothing lives in gives its memory back, so that it is certainly zero when it is taken again; one that
// something lives in has memory.
void Space::repair_commits(u64 limit) {
    if (tiered() || is_device(data_fd_)) return;  // the keeper's; a device has all its memory always
    for (u64 block = 0; block < div_up(limit * PAGE, BLOCK); block++) {
        u64 words = BLOCK / PAGE / 64, taken = 0, bit = 1ull << (block % 64);
        for (u64 word = block * words; word < std::min((block + 1) * words, div_up(limit, 64)); word++) taken |= data.bits()[word];
        u64& commits = data.commits()[block / 64];
        u64 bytes = std::min((block + 1) * BLOCK, limit * PAGE) - block * BLOCK;
        constexpr int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        if (!taken && fallocate(data_fd_, punch, off_t(block * BLOCK), off_t(bytes)) == 0) {
            commits &= ~bit;
        } else if (!(commits & bit)) {
            if (int error = allocate_file(data_fd_, block * BLOCK, bytes)) fail_os("no memory for the arrays of the space", error);
            commits |= bit;
        }
    }
}

// Nobody else has the space open: this is the first opener, under the join lock, before it joins.
void Space::repair() {
    for (int h = 0; h < 2; h++) {
        PageHeap& pages = roots().pages[h];
        if (pages.limit > layout.heap[h].pages || pages.limit % CHUNK_PAGES || !pages.limit)
            throw Error(Code::corrupt, "the metadata of the space at " + directory_ + " is damaged: a heap has an impossible size; remove the space");
    }
    Marks marks = mark(false);
    for (u64* word : marks.stale) store(*word, 1);
    for (u64* root : marks.spare) store(*root, 0);
    roots().collect = Lock{};
    for (Stripe& stripe : roots().stripes) {
        stripe.lock = Lock{};
        stripe.next = stripe.old = stripe.moving = stripe.moving_to = 0;
        stripe.live = stripe.used = 0;
        for (u64 at = 0; at < Index::count(stripe.table); at++) {
            u64 word = index.words(stripe.table)[at];
            stripe.used += word != 0;
            stripe.live += word > 1;
        }
    }
    u64 mended = 0;
    for (u64 offset : marks.records) {  // all that the index leads to; any but these three states is damage
        const u64 was = swap(record(offset).state, u64(live));
        mended += was != live && was != draft && was != leaving;
    }
    if (mended)
        std::fprintf(stderr, "openshelf: the metadata of the space at %s was damaged: %llu arrays had no valid state; they are in the index, and were kept\n",
                     directory_.c_str(), static_cast<unsigned long long>(mended));
    for (int h = 0; h < 2; h++) {
        Heap& heap = h ? data : meta;
        PageHeap& pages = heap.pages();
        u64 limit = pages.limit;
        std::copy_n(marks.extents[h].begin(), div_up(limit, 64), heap.bits());
        std::fill_n(heap.slabs(), div_up(limit, CHUNK_PAGES * 64), 0);
        if (h) std::fill_n(heap.owners(), limit, 0);
        for (auto& [at_chunk, mark] : marks.chunks[h]) {
            heap.commit_chunk(at_chunk);
            Chunk& chunk = heap.chunk(at_chunk);
            chunk = Chunk{};
            chunk.cls = mark.cls;
            chunk.arena = u32(mark.names ? ARENAS / 2 + at_chunk % (ARENAS / 2) : at_chunk % (ARENAS / 2)) + 1;
            std::copy_n(mark.bits, 16, chunk.bits);
            heap.slabs()[at_chunk / 64] |= 1ull << (at_chunk % 64);
            heap.bits()[at_chunk * CHUNK_PAGES / 64] |= 0xffffull << (at_chunk * CHUNK_PAGES % 64);
            u64 bytes = class_bytes(mark.cls);
            for (u64 slot = 0; slot < class_slots(mark.cls); slot++) {
                if (h) heap.slots(at_chunk)[slot] = 0;
                else if (!(mark.bits[slot / 64] >> (slot % 64) & 1)) std::memset(base_ + heap.chunk_offset(at_chunk) + slot * bytes, 0, sizeof(Record));
            }
        }
        if (h) repair_commits(limit);
        pages.lock = Lock{};
        pages.pending = pages.used = 0;
        for (u64 word = 0; word < div_up(limit, 64); word++) pages.used += u64(std::popcount(heap.bits()[word]));
        std::fill_n(pages.hint, 32, 0);
        pages.top = limit;
        for (u32 arena = 0; arena < ARENAS; arena++) {
            heap.arena(arena).lock = Lock{};
            heap.arena(arena).pending = heap.arena(arena).incoming = 0;
            heap.rebuild(arena);
        }
    }
    for (u64 offset : marks.records) data.set_owner(load(record(offset).data), u32(offset / 64));
}

}  // namespace osf::space
