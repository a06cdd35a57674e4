// The allocators against a model: nothing overlaps, a run that exists is found, and what is freed is free.
#include <map>

#include "tests/check.hpp"

using namespace osf;
using namespace osf::test;

constexpr u64 ROOTS = 2000;

static void classes_hold_what_they_say() {
    u64 previous = 0;
    for (u32 cls = 0; class_bytes(cls); cls++) {
        u64 bytes = class_bytes(cls);
        CHECK(bytes > previous && bytes % 64 == 0 && class_slots(cls) * bytes <= CHUNK && class_slots(cls) <= 1024);
        CHECK(class_of(bytes) == cls && class_of(previous + 1) == cls);
        previous = bytes;
    }
    CHECK(previous == SLAB_MAX && class_of(0) == 0);
    for (u64 bytes = 1; bytes <= SLAB_MAX; bytes++) CHECK(class_bytes(class_of(bytes)) >= bytes);
}

// Words in shared memory that blocks can hang on.
static u64* roots_in(Space& space) {
    Spec spec;
    spec.nbytes = ROOTS * 8;
    spec.name = "roots";
    Held held = space.make(spec, true);
    space.publish(held, false);
    return reinterpret_cast<u64*>(space.bytes(held));
}

static u64 longest_run(const std::vector<bool>& taken) {
    u64 best = 0, run = 0;
    for (bool page : taken) best = std::max(best, run = page ? 0 : run + 1);
    return best;
}

static void extents_follow_the_model(unsigned seed) {
    Place place(16 * MIB);
    std::shared_ptr<Space> space = place.open();
    Heap& heap = space->data;
    u64* roots = roots_in(*space);
    std::mt19937 random(seed);
    std::vector<bool> taken;
    auto read_map = [&] {
        std::vector<bool> map(heap.limit());
        for (u64 page = 0; page < map.size(); page++) map[page] = heap.bits()[page / 64] >> (page % 64) & 1;
        return map;
    };
    taken = read_map();
    const std::vector<bool> before = taken;
    const u64 used = heap.used();
    u64 refused = 0;
    for (int round = 0; round < 40'000; round++) {
        u64& root = roots[random() % ROOTS];
        if (root) {
            for (u64 page = extent_page(root); page < extent_page(root) + extent_pages(root); page++) taken[page] = false;
            heap.free(root);
            CHECK(root == 0);
            continue;
        }
        // The mixture moves, so that the map is now full, now almost empty.
        u64 pages = round / 5000 % 2 ? 1 + random() % 3 : 1ull << random() % 9;
        if (random() % 4 == 0) pages += random() % pages;
        if (round / 2000 % 3 == 2) continue;
        try {
            heap.take_pages(pages, root);
        } catch (const Error& error) {
            CHECK(error.code == Code::no_room && longest_run(taken) < pages);
            refused++;
            continue;
        }
        CHECK(extent_pages(root) == pages && extent_page(root) + pages <= heap.limit());
        for (u64 page = extent_page(root); page < extent_page(root) + pages; page++) {
            CHECK(!taken[page]);
            taken[page] = true;
        }
        if (round % 1000 == 0) {
            CHECK(taken == read_map() && heap.largest_run() == longest_run(taken));
        }
        if (round == 20'000) {
            space->grow(4 * MIB);
            taken.resize(heap.limit());
        }
    }
    CHECK(refused > 0);
    for (u64 at = 0; at < ROOTS; at++)
        if (roots[at]) heap.free(roots[at]);
    taken = read_map();
    CHECK(std::equal(before.begin(), before.end(), taken.begin()) && heap.used() == used);
    check_sound(*space);
}

static void slabs_follow_the_model(Heap::Kind kind, unsigned seed) {
    Place place(16 * MIB);
    std::shared_ptr<Space> space = place.open();
    Heap& heap = kind ? space->data : space->meta;
    u64* roots = roots_in(*space);
    std::mt19937 random(seed);
    std::map<u64, u64> blocks;  // offset to its end
    u64 refused = 0;
    for (int round = 0; round < 60'000; round++) {
        u64& root = roots[random() % ROOTS];
        if (root) {
            CHECK(blocks.erase(heap.offset(root)) == 1);
            heap.free(root);
            CHECK(root == 0);
            continue;
        }
        u64 bytes = random() % 4 ? 1 + random() % 300 : 1 + random() % (2 * SLAB_MAX);
        try {
            heap.take(bytes, root);
        } catch (const Error& error) {
            CHECK(error.code == Code::no_room);
            refused++;
            continue;
        }
        u64 from = heap.offset(root), end = from + bytes;
        CHECK(heap.capacity(root) >= bytes && (root & EXTENT) == (bytes > SLAB_MAX ? EXTENT : 0));
        CHECK((root & EXTENT) || heap.slot_taken(root));
        auto next = blocks.lower_bound(from);
        CHECK(next == blocks.end() || next->first >= end);
        CHECK(next == blocks.begin() || std::prev(next)->second <= from);
        blocks[from] = end;
    }
    for (u64 at = 0; at < ROOTS; at++)
        if (roots[at]) heap.free(roots[at]);
    check_sound(*space);
    // Of what was freed, every class keeps one empty chunk.
    CHECK(heap.used() <= (2 * CLASSES) * CHUNK_PAGES + (kind ? div_up(ROOTS * 8, PAGE) : STRIPES));
}

// A full heap serves a small block from any arena's free slot, not only from the process's own.
static void others_slots_are_the_last_resort() {
    Place place(1 * MIB);
    std::shared_ptr<Space> space = place.open();
    u64* roots = roots_in(*space);
    CHECK(returned(run([&] { space->data.take(64, roots[0]); })));  // a chunk of another arena, 1023 slots free
    for (u64 at = 1; at < ROOTS; at++) {
        try {
            space->data.take_pages(1, roots[at]);
        } catch (const Error&) {
            break;
        }
    }
    for (u64 at = 1000; at < 1500; at++) {
        CHECK(roots[at] == 0);
        space->data.take(64, roots[at]);
    }
    for (u64 at = 0; at < ROOTS; at++)
        if (roots[at]) space->data.free(roots[at]);
    check_sound(*space);
}

int main() {
    classes_hold_what_they_say();
    for (unsigned seed = 1; seed <= 3; seed++) extents_follow_the_model(seed);
    slabs_follow_the_model(Heap::data, 4);
    slabs_follow_the_model(Heap::meta, 5);
    others_slots_are_the_last_resort();
    return 0;
}
