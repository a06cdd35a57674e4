// The files behind a space of several hosts, on one host: what survives the keeper.
//
//   data      the own segment (of the Space)                shadow    what the home lent, unit by unit where data has it
//   cache-N   copies of host N's segment, likewise          escrow    units that were given back and not yet confirmed
//   units     one page of UnitsHead, then for every host 2^25 words of 8 bytes: one for each unit (coherence/coherence.hpp)
//
// Every process that has copies mapped holds a lock on one of the first PLACES bytes of `units` (an OFD lock: it ends with the
// process, however that ends).
//
// All sparse. A segment begins at `base + host * reserve + data_at`; offset 0 of a file is that address.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "coherence/coherence.hpp"

namespace osf::coherence {

constexpr u64 UNITS_MAGIC = 0x3273'7469'6e75'736full;   // "osunits2"
constexpr u64 WORDS = 1 << 25;                          // of one host: 128 GiB of the smallest unit
constexpr u32 SLOTS = 1 << 16, KEPT_SLOTS = 128;         // the first keep their memory when they are free
constexpr u64 KEPT_SHADOWS = 16 * MIB;                  // of units that are here again
constexpr u32 PLACES = 4096;
constexpr u64 MICRO = 1'000, MILLI = 1'000'000, LEASE_NS = 1900 * MILLI;
constexpr u64 SUSPEND_NS = 500 * MILLI;                 // at most, for keeping what was written when a lease has ended
constexpr u64 UNIT_MIN = PAGE, UNIT_MAX = 2 * MIB;

struct UnitsHead {
    u64 magic, incarnation;
    u32 self, hosts;
    u64 seen[MAX_HOSTS];        // incarnation of each host when it was last met; own: unused
    u64 given[MAX_HOSTS];       // session: counts the times this host declared that one lost
    u64 taken[MAX_HOSTS];       // the session under which this host borrows from that one
    u32 unit[MAX_HOSTS];        // bytes; 0: not known yet
    u64 leased[MAX_HOSTS];      // CLOCK_MONOTONIC: what is borrowed from that host may be used for LEASE from then on
    u64 heard[MAX_HOSTS];       // likewise: when something last came from it
    u64 linked;                 // bits: hosts that the keeper is connected to
    u64 suspended[MAX_HOSTS];   // the `leased` whose end the keeper has carried out: nothing of it can be used
    u64 epoch;                  // of the list of hosts that the keeper goes by, if hosts agree on it; 0: it is fixed
    u64 term[MAX_HOSTS];        // likewise: of each host (net/roster.hpp)
};
static_assert(sizeof(UnitsHead) <= PAGE);

// Views of a host's arrays hold while it neither was restarted nor gave this host up: afterwards other arrays may be there.
inline u64 life_of(u64 incarnation, u64 session) { return incarnation + 0x9e37'79b9'7f4a'7c15ull * session; }

// Of an own unit that is lent, where processes of this host can read bytes before the word admits it (Abilities::minor): what came back is
// in an escrow slot of this host, and will be the unit's bytes whatever becomes of the borrower, because somebody may have read them.
constexpr u64 RETURNED = 1 << 2;
constexpr u64 returned_word(u64 lent_word, u32 slot) { return (lent_word & 0xffff) | RETURNED | u64(slot) << 16; }
constexpr u32 returned_slot(u64 word) { return u32(word >> 16 & 0xffff); }
static_assert(SLOTS == 1 << 16);

// A file's mapping of words that takes memory page by page: a full /dev/shm is an error, not a SIGBUS.
class Segments {
public:
    // Makes what is missing. `unit`: of the own segment, if it is new.
    Segments(const std::string& directory, u32 self, u32 hosts, u64 segment_bytes, u32 unit);
    ~Segments();
    Segments(const Segments&) = delete;
    Segments& operator=(const Segments&) = delete;

    UnitsHead& head() const { return *reinterpret_cast<UnitsHead*>(map_); }
    u64 unit_bytes(u32 host) const { return load(head().unit[host]); }
    u64 units(u32 host) const { return unit_bytes(host) ? segment_bytes_ / unit_bytes(host) : 0; }

    u64 word(u32 home, u64 unit) const { return load(words(home)[unit]); }
    void set_word(u32 home, u64 unit, u64 value);
    void each_word(u32 home, const std::function<void(u64, u64)>& show) const;

    const char* bytes(Source source, u32 home, u64 unit, u32 slot) const;   // to be read at once, by the agent
    void fill(u32 home, u64 unit, const char* bytes);
    void filled(u32 home) { copied_ += unit_bytes(home); }                  // by others
    void punch(u32 home, u64 unit);
    void provide(u64 unit);                   // memory for an own unit that was never touched
    void save(u64 unit);
    void restore(u64 unit);
    void drop_shadow(u64 unit);               // soon: of units that are often lent the memory is kept
    bool take_slot(u32 home, u64 unit, u32& slot);
    void keep_returned(u64 unit, const char* bytes);        // of a lent unit, before they are filled in; until its next word
    void free_slot(u32 slot);
    void tidy(u32 home);
    u64 copied_bytes() const { return copied_; }      // in caches, about

    std::vector<u32> places() const;          // of the processes that live

    static int take_place(const std::string& directory, u32& place);       // a file to keep open as long
    static std::string cache_name(u32 host) { return "cache-" + std::to_string(host); }
    static constexpr u64 units_bytes(u32 hosts) { return PAGE + hosts * WORDS * 8; }

private:
    void clear_damage();
    bool take_slot(const char* bytes, u64 size, u32& slot);
    void end_returns();
    u64* words(u32 home) const { return reinterpret_cast<u64*>(map_ + PAGE) + home * WORDS; }
    int file(u32 home) const { return home == self_ ? data_ : caches_[home]; }
    static const char* map(int fd, u64 bytes);

    u32 self_, hosts_;
    u64 segment_bytes_, copied_ = 0;
    int units_ = -1, data_ = -1, shadow_ = -1, escrow_ = -1;
    std::vector<int> caches_;
    // Second mappings of the files, never registered for faults: what the agent reads through.
    std::vector<const char*> copies_;         // [self]: data
    const char *shadow_bytes_ = nullptr, *escrow_bytes_ = nullptr;
    char* map_ = nullptr;
    std::vector<bool> committed_;             // pages of the words
    std::deque<u64> dropped_;                 // shadows that still have their memory
    std::vector<u32> free_slots_;             // the next to take is the last
};

}  // namespace osf::coherence
