#include "shards/copies.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

namespace osf::shards {

constexpr u32 DRAWN = 8;                         // rows that a new one is compared with
constexpr u64 MEMORY = 32;                       // counts are halved after so many look-ups for each row of room
constexpr u64 LINES = 4;                         // of the sketch

Copies::Copies(u64 most, u64 row_bytes) : most_(most), row_bytes_(row_bytes), index_(1024), sketch_(LINES * std::bit_ceil(std::max<u64>(1024, 4 * most))) {
    slots_.reserve(most);
    rows_.reserve(most * row_bytes);
}

u32 Copies::slot_of(u64 id) const {
    for (u64 at = place(id);; at = (at + 1) & (index_.size() - 1)) {
        if (!index_[at]) return NONE;
        if (slots_[index_[at] - 1].id == id) return index_[at] - 1;
    }
}

u32 Copies::find(u64 id, u32 times) {
    const u32 found = slot_of(id);
    if (found == NONE) return NONE;
    Slot& slot = slots_[found];
    std::atomic_ref<u8> wanted(slot.wanted);     // readers count side by side, and may lose some
    const u32 now = std::min<u32>(255, wanted.load(std::memory_order_relaxed) + times);
    wanted.store(u8(now), std::memory_order_relaxed);
    std::atomic_ref<bool>(slot.used).store(true, std::memory_order_relaxed);
    return found;
}

bool Copies::promise(u64 id, u32 of) {
    const u32 found = slot_of(id);
    if (found == NONE) return false;
    std::atomic_ref<u32>(slots_[found].promised).store(of, std::memory_order_relaxed);
    return true;
}

u32 Copies::wanted(u64 id) const {
    const u64 width = sketch_.size() / LINES;
    u32 least = 255;
    for (u64 line = 0; line < LINES; line++) least = std::min<u32>(least, sketch_[line * width + (hash(id, line + 1) & (width - 1))]);
    return least;
}

void Copies::note(u64 id, u32 times) {
    const u64 width = sketch_.size() / LINES;
    for (u64 line = 0; line < LINES; line++) {
        u8& count = sketch_[line * width + (hash(id, line + 1) & (width - 1))];
        count = u8(std::min<u32>(255, count + times));
    }
    age(times);
}

void Copies::age(u32 times) {
    uses_ += times;
    if (uses_ < MEMORY * std::max<u64>(most_, 1024)) return;
    uses_ = 0;
    for (u8& count : sketch_) count /= 2;
    for (Slot& slot : slots_) slot.wanted /= 2;
}

void Copies::grow_index() {
    std::vector<u32> old(index_.size() * 2);
    old.swap(index_);
    for (u32 entry : old) {
        if (!entry) continue;
        u64 at = place(slots_[entry - 1].id);
        while (index_[at]) at = (at + 1) & (index_.size() - 1);
        index_[at] = entry;
    }
}

u32 Copies::take_slot() {
    if (free_.empty()) {
        slots_.emplace_back();
        hot_at_.push_back(0);
        rows_.resize(slots_.size() * row_bytes_);
        if (2 * slots_.size() > index_.size()) grow_index();
        return u32(slots_.size() - 1);
    }
    const u32 slot = free_.back();
    free_.pop_back();
    return slot;
}

void Copies::put(u32 number, u64 id, u16 host, u64 tag, const char* row, bool staged) {
    moved++;
    slots_[number] = {id, tag, host, 0, true, staged, true, 0};
    std::memcpy(rows_.data() + u64(number) * row_bytes_, row, row_bytes_);
    u64 at = place(id);
    while (index_[at]) at = (at + 1) & (index_.size() - 1);
    index_[at] = number + 1;
    if (staged) {
        staged_++;
        order_.emplace_back(number, id);
    } else {
        hot_at_[number] = u32(hot_list_.size());
        hot_list_.push_back(number);
        hot_++;
    }
}

void Copies::drop_slot(u32 number) {
    moved++;
    Slot& slot = slots_[number];
    u64 hole = place(slot.id);
    while (index_[hole] != number + 1) hole = (hole + 1) & (index_.size() - 1);
    // Entries after the hole that could not be where they hash to move into it.
    for (u64 at = (hole + 1) & (index_.size() - 1); index_[at]; at = (at + 1) & (index_.size() - 1)) {
        const u64 wish = place(slots_[index_[at] - 1].id);
        if (((at - wish) & (index_.size() - 1)) < ((at - hole) & (index_.size() - 1))) continue;
        index_[hole] = index_[at];
        hole = at;
    }
    index_[hole] = 0;
    if (slot.staged) {
        staged_--;
    } else {
        const u32 last = hot_list_.back();
        hot_list_[hot_at_[number]] = last;
        hot_at_[last] = hot_at_[number];
        hot_list_.pop_back();
        hot_--;
    }
    slot.taken = false;
    free_.push_back(number);
}

void Copies::drop(u64 id) {
    if (const u32 found = slot_of(id); found != NONE) drop_slot(found);
}

void Copies::replace(u32 number, u64 tag, const char* row) {
    slots_[number].tag = tag;
    slots_[number].used = false;
    std::memcpy(rows_.data() + u64(number) * row_bytes_, row, row_bytes_);
}

bool Copies::make_way(u32 count) {
    if (hot_ < most_) return true;
    if (hot_list_.empty()) return false;
    u32 victim = NONE;
    for (u32 draw = 0; draw < DRAWN; draw++) {
        random_ ^= random_ << 13;
        random_ ^= random_ >> 7;
        random_ ^= random_ << 17;
        const u32 one = hot_list_[random_ % hot_list_.size()];
        if (slots_[one].promised + 2 > batch) continue;
        if (victim == NONE || slots_[one].wanted < slots_[victim].wanted) victim = one;
    }
    if (victim == NONE || slots_[victim].wanted >= count) return false;
    // What it was wanted is known better than the sketch has it.
    note(slots_[victim].id, slots_[victim].wanted > wanted(slots_[victim].id) ? slots_[victim].wanted - wanted(slots_[victim].id) : 0);
    drop_slot(victim);
    return true;
}

void Copies::offer(u64 id, u16 host, u64 tag, const char* row, u32 times) {
    if (slot_of(id) != NONE) return;             // another thread was first
    note(id, times);
    const u32 count = wanted(id);
    if (!make_way(count)) return;
    const u32 slot = take_slot();
    put(slot, id, host, tag, row, false);
    slots_[slot].wanted = u8(count);
}

void Copies::promote(u64 id, u32 times) {
    const u32 found = slot_of(id);
    if (found == NONE || !slots_[found].staged) return;
    note(id, times);
    const u32 count = wanted(id);
    if (!make_way(count)) return;
    slots_[found].staged = false;
    slots_[found].promised = batch;
    slots_[found].wanted = u8(count);
    staged_--;
    hot_at_[found] = u32(hot_list_.size());
    hot_list_.push_back(found);
    hot_++;
}

void Copies::stage(u64 id, u16 host, u64 tag, const char* row) {
    if (slot_of(id) != NONE) return;
    while (staged_ >= stage_most_ && !order_.empty()) {
        const auto [slot, which] = order_.front();
        order_.pop_front();
        if (slots_[slot].taken && slots_[slot].staged && slots_[slot].id == which) drop_slot(slot);
    }
    put(take_slot(), id, host, tag, row, true);
}

}  // namespace osf::shards
