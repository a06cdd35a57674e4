#include "tables/cold.hpp"

#include <algorithm>
#include <mutex>

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

// They are few, and are left to the end of the process.
constexpr u64 MOST_ROOMS = 4, MOST_KEPT = 16 * MIB;
struct Rooms {
    Rooms() { kept.reserve(MOST_ROOMS); }
    std::mutex mutex;
    std::vector<std::unique_ptr<ColdRoom>> kept;
};
static Rooms& rooms = *new Rooms;

// A fork in another thread may leave the lock taken in the child, for ever: nobody waits for it.
std::unique_ptr<ColdRoom> take_cold_room() {
    std::unique_ptr<ColdRoom> room;
    if (std::unique_lock lock(rooms.mutex, std::try_to_lock); lock && !rooms.kept.empty()) {
        room = std::move(rooms.kept.back());
        rooms.kept.pop_back();
    }
    return room && room->reads.usable() ? std::move(room) : std::make_unique<ColdRoom>();
}

void keep_cold_room(std::unique_ptr<ColdRoom> room) {
    if (!room || !room->reads.usable() || room->copies.size() > MOST_KEPT) return;  // a bag may have any number of rows
    if (std::unique_lock lock(rooms.mutex, std::try_to_lock); lock && rooms.kept.size() < MOST_ROOMS) rooms.kept.push_back(std::move(room));
}

u64 ColdRows::most() const { return std::clamp<u64>(8 * MIB / row_bytes_, 256, 16384); }

void ColdRows::fetch(const char** rows, u64 count) {
    const TierClient& tiers = cold_->tiers;
    TierWords& words = cold_->tiers.words();
    if (!room_) room_ = take_cold_room();
    if (room_->copies.size() < count * row_bytes_) room_->copies.resize(count * row_bytes_);
    wanted_.clear();
    char* copies = room_->copies.data();
    u64 hits = 0;
    for (u64 at = 0; at < count; at++) {
        const u64 unit = tiers.unit_at(rows[at]);
        const u64 word = load(words.at(unit).word, std::memory_order_acquire);
        if (tier_of(word) != Tier::flash || tiers.unit_at(rows[at] + row_bytes_ - 1) != unit) continue;
        if (cold_->hot && cold_->hot->find(rows[at], word, copies + at * row_bytes_)) {
            rows[at] = copies + at * row_bytes_;
            hits++;
        } else {
            wanted_.push_back({rows[at], word, u32(at)});
        }
    }
    cold_->hits.fetch_add(hits, std::memory_order_relaxed);
    if (wanted_.empty()) return;
    order();
    room_->reads.run(orders_, [&](u64 number, const char* bytes) { came(rows, number, bytes); });
}

// Sorted, so that a row that is wanted twice is read once, and rows of one sector together.
void ColdRows::order() {
    std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) { return a.row < b.row || (a.row == b.row && a.word < b.word); });
    orders_.clear();
    first_.clear();
    u64 distinct = 0;
    for (u32 at = 0; at < wanted_.size(); at++) {
        const Wanted& one = wanted_[at];
        distinct += !at || one.row != wanted_[at - 1].row;
        const u64 unit = cold_->tiers.unit_at(one.row), inside = u64(one.row - cold_->tiers.unit(unit));
        const u64 first = inside / SECTOR * SECTOR, end = align_up(inside + row_bytes_, SECTOR);
        const Flash::Sectors slot = cold_->flash.sectors(flash_slot(one.word));
        const bool same = at && one.word == wanted_[at - 1].word && unit == cold_->tiers.unit_at(wanted_[at - 1].row);
        if (same && orders_.back().file == slot.file && orders_.back().at <= slot.at + first && slot.at + end <= orders_.back().at + orders_.back().bytes)
            continue;
        orders_.push_back({slot.file, slot.at + first, end - first});
        first_.push_back(at);
    }
    first_.push_back(u32(wanted_.size()));
    cold_->reads.fetch_add(distinct, std::memory_order_relaxed);
}

// Rows that were not read, or whose unit has changed since, are left to a touch.
void ColdRows::came(const char** rows, u64 number, const char* bytes) {
    if (!bytes) return;
    std::atomic_thread_fence(std::memory_order_acquire);
    const Wanted& first = wanted_[first_[number]];
    const u64 unit = cold_->tiers.unit_at(first.row);
    if (load(cold_->tiers.words().at(unit).word) != first.word) return;
    const char* begin = cold_->tiers.unit(unit);
    const u64 skipped = u64(first.row - begin) / SECTOR * SECTOR;
    for (u32 at = first_[number]; at < first_[number + 1]; at++) {
        const Wanted& one = wanted_[at];
        char* copy = room_->copies.data() + one.index * row_bytes_;
        std::memcpy(copy, bytes + (u64(one.row - begin) - skipped), row_bytes_);
        rows[one.index] = copy;
        const bool again = at > first_[number] && one.row == wanted_[at - 1].row;
        if (!again && cold_->hot) cold_->hot->keep(one.row, one.word, copy);
    }
}

}  // namespace osf::tables
