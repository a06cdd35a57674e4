#include "engine/units.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>

#include "base/trusted.hpp"
#include "space/sync.hpp"

namespace osf::engine {

Units::Units(std::shared_ptr<Space> opened)
    : space(std::move(opened)), words(space->directory(), true), data_at(u64(space->base()) + space->layout.data_at), count(words.head().units),
      capacity(words.head().capacity), durable(words.head().durable), policy(count, capacity), local_(count) {
    data_ = open_data(space->directory(), O_RDWR);
}

Units::~Units() {
    if (data_ >= 0) ::close(data_);
}

void Units::punch(u32 first, u32 units) {
    while (fallocate(data_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(first) * off_t(UNIT), off_t(units) * off_t(UNIT)) < 0)
        if (errno != EINTR) std::abort();  // tmpfs has no reason to refuse; going on would show old bytes
}

// Before anything is done by them: a word that no keeper wrote says nothing of where the bytes are.
void Units::check_words() const {
    for (u32 unit = 0; unit < count; unit++)
        if (!is_tier_word(word(unit), words.head().slots))
            throw Error(Code::corrupt, space->directory() + "/tiers is damaged: it does not say where unit " + std::to_string(unit) + " is; remove the space");
}

// What a keeper that is gone had begun: undone, or as if it had been done.
static u64 ended(u64 word) {
    switch (tier_of(word)) {
        case Tier::filling: return with_tier(word, flash_slot(word) == NO_SLOT ? Tier::empty : Tier::flash);
        case Tier::writing: return with_tier(word, Tier::dirty);
        case Tier::dropping: return with_tier(word, Tier::flash);
        case Tier::discarding: return tier_word(Tier::empty, generation_of(word), NO_SLOT);
        default: return word;
    }
}

void Units::recover() {
    check_words();
    u64 dirty = 0;
    u32 out = 0;  // units before this one are not in memory: pages that they left behind go
    auto punch_out = [&](u32 to) {
        if (out) punch(to - out, out);
        out = 0;
    };
    for (u32 unit = 0; unit < count; unit++) {
        const u64 is = ended(word(unit));
        if (in_memory(tier_of(is))) punch_out(unit);
        else out++;
        store(words.at(unit).word, is);
        if (!in_memory(tier_of(is))) continue;
        resident_++;
        dirty += tier_of(is) == Tier::dirty;
        local_[unit].mapped = ~0ull;
        policy.filled(unit, true);
    }
    punch_out(u32(count));
    TiersHead& head = words.head();
    store(head.vacant, 0);
    store(head.resident, resident_);
    store(head.dirty, dirty);
    store(head.pinned, 0);
    store(head.evicting, 0);
}

void Units::set(u32 unit, u64 word) {
    TierWord& at = words.at(unit);
    const Tier was = tier_of(load(at.word)), is = tier_of(word);
    auto here = [](Tier tier) { return tier != Tier::empty && tier != Tier::flash; };
    resident_ += u64(here(is)) - u64(here(was));
    auto changed = [](Tier tier) { return tier == Tier::dirty || tier == Tier::writing; };
    TiersHead& head = words.head();
    store(head.dirty, head.dirty + u64(changed(is)) - u64(changed(was)));
    store(head.resident, resident_);
    store(at.word, word);
}

void Units::set_unsure(u32 unit) {
    set_tier(unit, Tier::dirty);
    local_[unit].unsure = true;
}

void Units::set_vacant(u32 unit, bool is) {
    local_[unit].vacant = is;
    if (is) vacants_.insert(unit);
    else vacants_.erase(unit);
    store(words.head().vacant, vacants_.size());
}

void Units::mapped_everywhere(u64 bit) {
    for (Local& local : local_) local.mapped |= bit;
}

void Units::pin(u32 unit, bool plain) {
    pinned_ += local_[unit].pins++ == 0;
    local_[unit].plain_pins += plain;
}

void Units::unpin(u32 unit, bool plain) {
    pinned_ -= --local_[unit].pins == 0;
    local_[unit].plain_pins -= plain;
}

void Units::trouble(const std::string& why) {
    TiersHead& head = words.head();
    head.counts.errors++;
    std::snprintf(head.trouble, sizeof head.trouble, "%s", why.substr(why.find(':') + 1).c_str());
}

// Arrays that have a part of the unit, as far as they are whole: found(offset of the record, page), until that says true.
template <class Found>
void Units::each_owner(u32 unit, Found found) const {
    u32 last = 0;
    for (u64 page = u64(unit) * CHUNK_PAGES; page < (u64(unit) + 1) * CHUNK_PAGES; page++) {
        const u32 owner = load(space->data.owners()[page]);
        if (!owner || owner == last) continue;
        last = owner;
        const u64 offset = u64(owner) * 64;
        if (space->meta.contains(offset) && space->meta.slot_taken(offset) && found(offset, page)) return;
    }
}

// Slabs hold what is small and often waited for with futexes; locks, channels and pools' heads are used by native code that
// does not expect to wait for a disk. The blocks of pools are not: they may be as many as flash holds.
bool Units::unmovable(u32 unit) const {
    if (space->data.is_slab(unit)) return true;
    bool stays = false;
    each_owner(unit, [&](u64 record, u64 page) {
        const u8 kind = load(space->record(record).kind);
        return stays = kind && !movable(record, page);
    });
    return stays;
}

// Whether a page of an array of some kind, and so what follows it there, may leave memory.
bool Units::movable(u64 record, u64 page) const {
    const Record& array = space->record(record);
    const u64 ref = load(array.data), first = extent_page(ref);
    if (!(ref & EXTENT) || page < first || page >= first + extent_pages(ref) || !in_memory(words.tier(first / CHUNK_PAGES))) return false;
    const u64 from = movable_from(load(array.kind), space->data.pointer(ref), std::min(array.nbytes, extent_pages(ref) * PAGE));
    return from && (page - first) * PAGE >= from;
}

bool Units::unused(u32 unit) const { return (load(space->data.bits()[u64(unit) * CHUNK_PAGES / 64]) >> (u64(unit) * CHUNK_PAGES % 64) & 0xffff) == 0; }

std::string Units::names_at(u32 unit) const {
    std::string names;
    each_owner(unit, [&](u64 record, u64) {
        std::string name = name_of(space->record(record), space->meta);
        names += (names.empty() ? "'" : ", '") + (name.empty() ? std::string("unnamed") : name) + "'";
        return false;
    });
    return names.empty() ? "nothing" : names;
}

}  // namespace osf::engine
