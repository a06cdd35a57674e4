#include "tables/cold.hpp"

#include <algorithm>

namespace osf::tables {

HotRows::HotRows(u64 bytes, u64 row_bytes)
    : row_bytes_(row_bytes), count_(std::max<u64>(1, bytes / (WAYS * row_bytes + sizeof(Set)))), sets_(new Set[count_]), bytes_(new char[count_ * WAYS * row_bytes]) {}

bool HotRows::find(const char* row, u64 word, char* to) {
    const u64 number = number_of(row);
    Set& set = sets_[number];
    if (set.busy.exchange(true, std::memory_order_acquire)) return false;
    bool found = false;
    for (u32 way = 0; way < WAYS && !found; way++) {
        if (set.rows[way] != u64(row)) continue;
        if (set.words[way] != word) {
            set.rows[way] = set.uses[way] = 0;   // it has changed since
            break;
        }
        set.uses[way] = std::uint8_t(std::min(set.uses[way] + 1, int(MOST)));
        std::memcpy(to, place(number, way), row_bytes_);
        found = true;
    }
    set.busy.store(false, std::memory_order_release);
    return found;
}

void HotRows::keep(const char* row, u64 word, const char* from) {
    const u64 number = number_of(row);
    Set& set = sets_[number];
    if (set.busy.exchange(true, std::memory_order_acquire)) return;
    u32 least = 0;
    bool there = false;
    for (u32 way = 0; way < WAYS; way++) {
        there |= set.rows[way] == u64(row);      // another thread's read of it
        if (set.uses[way] < set.uses[least]) least = way;
    }
    if (!there && set.uses[least]) set.uses[least]--;
    else if (!there) {
        set.rows[least] = u64(row);
        set.words[least] = word;
        set.uses[least] = 1;
        std::memcpy(place(number, least), from, row_bytes_);
    }
    set.busy.store(false, std::memory_order_release);
}

Cold::Cold(TierClient& its) : tiers(its), flash(real_disk(), its.words().files(), its.words().head().slots, its.words().head().id) {}

char* ColdRows::room(std::vector<char>& memory, u64 bytes) {
    if (memory.size() < bytes + SECTOR) memory.resize(bytes + SECTOR);
    return memory.data() + (align_up(u64(memory.data()), SECTOR) - u64(memory.data()));
}

void ColdRows::fetch(const char** rows, u64 count) {
    const TierClient& tiers = cold_->tiers;
    TierWords& words = cold_->tiers.words();
    wanted_.clear();
    char* copy = room(copies_, count * row_bytes_);
    u64 hits = 0;
    for (u64 at = 0; at < count; at++) {
        const u64 unit = tiers.unit_at(rows[at]);
        const u64 word = load(words.at(unit).word, std::memory_order_acquire);
        if (tier_of(word) != Tier::flash || tiers.unit_at(rows[at] + row_bytes_ - 1) != unit) continue;
        if (cold_->hot && cold_->hot->find(rows[at], word, copy + at * row_bytes_)) {
            rows[at] = copy + at * row_bytes_;
            hits++;
        } else {
            wanted_.push_back({rows[at], word, u32(at)});
        }
    }
    cold_->hits.fetch_add(hits, std::memory_order_relaxed);
    if (!wanted_.empty()) read(rows);
}

// Sorted, so that a row that is wanted twice is read once.
void ColdRows::read(const char** rows) {
    std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) { return a.row < b.row; });
    const u64 most = align_up(row_bytes_ + SECTOR - 1, SECTOR);
    char* to = room(sectors_, wanted_.size() * most);
    orders_.clear();
    for (u64 at = 0; at < wanted_.size(); at++) {
        if (at && wanted_[at].row == wanted_[at - 1].row) continue;
        const u64 inside = u64(wanted_[at].row - cold_->tiers.unit(cold_->tiers.unit_at(wanted_[at].row)));
        const u64 first = inside / SECTOR * SECTOR, end = align_up(inside + row_bytes_, SECTOR);
        const Flash::Sectors slot = cold_->flash.sectors(flash_slot(wanted_[at].word));
        orders_.push_back({slot.file, slot.at + first, end - first, to + orders_.size() * most});
    }
    reads_.run(orders_);
    cold_->reads.fetch_add(orders_.size(), std::memory_order_relaxed);
    const Reads::One* order = orders_.data();
    const char* found = nullptr;
    for (u64 at = 0; at < wanted_.size(); at++) {
        const Wanted& one = wanted_[at];
        if (!at || one.row != wanted_[at - 1].row) {
            const u64 unit = cold_->tiers.unit_at(one.row);
            std::atomic_thread_fence(std::memory_order_acquire);
            const bool good = order->done && load(cold_->tiers.words().at(unit).word) == one.word;
            found = good ? order->to + u64(one.row - cold_->tiers.unit(unit)) % SECTOR : one.row;
            if (good && cold_->hot) cold_->hot->keep(one.row, one.word, found);
            order++;
        }
        rows[one.index] = found;
    }
}

}  // namespace osf::tables
