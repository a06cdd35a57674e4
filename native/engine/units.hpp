// The units of a space as its keeper knows them: what all parts of the engine share, and the mutex that all of it is under.
//
// One mutex for everything that is decided. Reads, writes and holes are made without it, by threads of the mover, on units that
// are theirs alone meanwhile (filling, writing, dropping, discarding in TierWord): nobody else changes the word of such a unit,
// nor its bytes. Every change of a word goes through set(), so that the counts in the head are right whenever the mutex is free.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "space/space.hpp"
#include "tiers/policy.hpp"
#include "tiers/words.hpp"

namespace osf::engine {

constexpr u32 NO_UNIT = ~0u, NO_CLIENT = ~0u;

struct Local {                           // what only this keeper knows of a unit
    u64 mapped = 0;                      // processes that may have it in their page tables
    u32 pins = 0, plain_pins = 0;        // the latter by who may write unseen: all but those who only read
    bool armed = false, drop = false;    // drop: leaves memory once it is written
    bool vacant = false;                 // on flash, but its pages are there still, of no meaning: the next fill needs no others
    bool stay = false;                   // leaves memory without its pages
    bool frozen = false;                 // what is written of it is part of a commit
    bool unsure = false;                 // dirty only because nobody would have noticed
    bool unseen = false;                 // a process without faults had it while it was written
    bool stale = false;                  // and before it was frozen: what is being written may lack what must be in the commit
};

// What comes first: also without the mutex. All else: with it; of units that are one's own, also word() and tier().
class Units {
public:
    explicit Units(std::shared_ptr<Space> space);
    ~Units();
    Units(const Units&) = delete;
    Units& operator=(const Units&) = delete;

    u32 at(u64 address) const { return u32((address - data_at) / UNIT); }
    u64 address_of(u32 unit) const { return data_at + u64(unit) * UNIT; }
    void punch(u32 first, u32 units);            // out of memory, and out of all page tables at once
    int data() const { return data_; }           // the file
    std::string names_at(u32 unit) const;        // of arrays that have a part of it

    void recover();                              // what an earlier keeper left under way. Once, before anything else is done
    Local& local(u32 unit) { return local_[unit]; }
    const Local& local(u32 unit) const { return local_[unit]; }
    u64 word(u32 unit) const { return load(words.at(unit).word); }
    Tier tier(u32 unit) const { return words.tier(unit); }
    TierCounts& counts() { return words.head().counts; }
    void set(u32 unit, u64 word);                // and the counts that follow from it
    void set_tier(u32 unit, Tier tier) { set(unit, with_tier(word(unit), tier)); }
    void set_unsure(u32 unit);                   // it counts as dirty from now on, though nobody was seen to write
    void set_vacant(u32 unit, bool is);
    void mapped_everywhere(u64 bit);             // by that process
    void pin(u32 unit, bool plain);
    void unpin(u32 unit, bool plain);
    void tell_pinned() { store(words.head().pinned, pinned_); }
    void trouble(const std::string& why);        // for people, and counted

    bool unmovable(u32 unit) const;              // something that must always be in memory is there
    bool unused(u32 unit) const;                 // nothing is there

    u64 pinned() const { return pinned_; }
    const std::set<u32>& vacants() const { return vacants_; }
    u64 room() const { return capacity > resident_ + vacants_.size() ? capacity - resident_ - vacants_.size() : 0; }
    u64 most_resident() const { return capacity - std::min(capacity / 2, low_water()); }
    u64 low_water() const { return std::max<u64>(4, std::min<u64>(capacity / 64, 4096)); }

    std::mutex mutex;
    const std::shared_ptr<Space> space;
    TierWords words;
    const u64 data_at, count, capacity;
    const bool durable;
    TierPolicy policy;
    u64 evicting = 0;                            // on their way out, by whoever asked
    u64 failed_ns = 0;                           // when flash last refused a write

private:
    bool movable(u64 record, u64 page) const;
    void check_words() const;
    template <class Found>
    void each_owner(u32 unit, Found found) const;

    int data_ = -1;
    std::vector<Local> local_;
    u64 resident_ = 0, pinned_ = 0;
    std::set<u32> vacants_;
};

}  // namespace osf::engine
