// What a space with a flash tier keeps beside its arrays: the file `tiers` in its directory, in memory, changed by the keeper alone.
//
//   0x0000  TiersHead   four pages: sizes, the files on flash, counters
//   0x4000  TierWord    16 bytes for every unit of the data, in order: where its bytes are
//
// A unit is 64 KiB of addresses, as much as a chunk of the heap, so that one is all slab or all extents. Its bytes are in the data
// file (a hole there: not in memory), in a slot of the flash files, or in both. The words survive the keeper: the next one
// finds in them what was under way, and undoes or repeats it (Units::recover, in engine/units.cpp).
#pragma once

#include <string>
#include <vector>

#include "base/layout.hpp"

namespace osf::tiers {

constexpr u64 TIERS_VERSION = 3;                        // of the words in memory and of the durable image; 2 had states that are one bit apart
constexpr u64 TIERS_MAGIC = 0x3173'7265'6974'736full;  // "ostiers1"
constexpr u64 UNIT = CHUNK;
constexpr u64 RUN = 16;                  // units: the most that one read or write takes, and the piece that files are striped by
constexpr u32 MAX_FILES = 8;
constexpr u64 FILE_PATH = 1024, TIERS_HEAD = 4 * PAGE;

// Any two differ in four bits or more: fewer that flip are damage, which is said, not somewhere else to look for the bytes.
enum class Tier : u32 {
    empty = 0x00,       // nowhere: zeros
    flash = 0x0f,       // in its slot
    filling = 0x33,     // on its way into memory; undone: flash, or empty if it has no slot
    clean = 0x3c,       // in memory and in its slot, write-protected in every process
    dirty = 0x55,       // in memory; a slot it has holds older bytes
    writing = 0x5a,     // in memory, write-protected, on its way into a slot; undone: dirty
    dropping = 0x66,    // being taken out of memory; repeated: flash
    discarding = 0x69,  // being forgotten; repeated: empty
};
constexpr Tier ALL_TIERS[] = {Tier::empty, Tier::flash, Tier::filling, Tier::clean, Tier::dirty, Tier::writing, Tier::dropping, Tier::discarding};

// state 8 bits | generation 24 bits | slot + 1, 32 bits
struct TierWord {
    u64 word;
    u64 check;   // of the bytes in the slot, with unit and generation
};
static_assert(sizeof(TierWord) == 16);
constexpr Tier tier_of(u64 word) { return Tier(word & 255); }
constexpr u64 generation_of(u64 word) { return word >> 8 & 0xffffff; }
constexpr u32 flash_slot(u64 word) { return u32(word >> 32) - 1; }      // NO_SLOT if it has none
constexpr u64 tier_word(Tier tier, u64 generation, u32 slot) { return u64(tier) | (generation & 0xffffff) << 8 | u64(slot + 1) << 32; }
constexpr u64 with_tier(u64 word, Tier tier) { return (word & ~255ull) | u64(tier); }
constexpr bool is_tier_word(u64 word, u64 slots) {
    const Tier tier = tier_of(word);
    bool known = false;
    for (Tier one : ALL_TIERS) known = known || one == tier;
    const bool needs_slot = tier == Tier::flash || tier == Tier::clean || tier == Tier::dropping;
    return known && (flash_slot(word) == NO_SLOT ? !needs_slot : flash_slot(word) < slots);
}
constexpr bool in_memory(Tier tier) { return tier == Tier::clean || tier == Tier::dirty || tier == Tier::writing; }
// The checksum of a unit's bytes, with its number and generation; copies them on the way, if it is said where to.
u64 unit_check(const char* bytes, u64 unit, u64 word, char* to = nullptr);

struct TierCounts {          // since the space was made; for people
    u64 faults, minor_faults;            // touches that came to the keeper; those whose bytes were in memory
    u64 wait_ns;                         // that touches waited for bytes
    u64 asked, asked_there;              // units that were asked for; those in memory already
    u64 read_bytes, written_bytes, dropped_bytes;        // from flash, to flash, out of memory without a write
    u64 read_ns, written_ns;             // spent reading and writing, all threads together
    u64 armed, armed_touched;
    u64 ahead_units;
    u64 errors;
    u64 commits;
};

struct TiersHead {
    u64 magic, version, units, capacity, slots;
    u64 piece;                           // units that go to one file before the next one's turn
    u32 files, durable;
    u64 id;                              // of this space, in its files on flash too
    u64 check;                           // of everything above and the paths
    char paths[MAX_FILES][FILE_PATH];
    // changes
    alignas(64) u64 resident, pinned, dirty, evicting, vacant;
    u64 keeper;                          // process id
    char trouble[256];                   // what flash said when it last failed
    TierCounts counts;
};
static_assert(sizeof(TiersHead) <= TIERS_HEAD);

struct FlashFile { std::string path; u64 bytes; };

// The mapped file.
class TierWords {
public:
    struct Options {
        u64 units = 0, capacity = 0, slots = 0;
        std::vector<std::string> files;
        bool durable = false;
        u64 id = 0;
    };
    static void create(const std::string& directory, const Options& options, u32 mode);
    TierWords(const std::string& directory, bool writable);
    ~TierWords();
    TierWords(const TierWords&) = delete;
    TierWords& operator=(const TierWords&) = delete;

    TiersHead& head() const { return *reinterpret_cast<TiersHead*>(map_); }
    TierWord& at(u64 unit) const { return reinterpret_cast<TierWord*>(map_ + TIERS_HEAD)[unit]; }
    Tier tier(u64 unit) const { return tier_of(load(at(unit).word)); }
    std::vector<std::string> files() const;

private:
    char* map_ = nullptr;
    u64 bytes_ = 0;
};

}  // namespace osf::tiers
