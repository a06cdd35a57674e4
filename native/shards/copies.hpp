// Copies of rows that live on other hosts, in this process's memory: rows that are asked for often, and rows that were asked for early.
//
// A row that was fetched stays if it was asked for more often than the least wanted of some rows that are here (counts of rows that are
// not here are estimated by a sketch, as in TinyLFU; Einziger et al. 2017). Counts are halved now and then, so that what was
// wanted once goes. Rows that were asked for early (staged) have room of their own, the oldest go first, and compete when they are used.
#pragma once

#include <atomic>
#include <deque>
#include <shared_mutex>
#include <vector>

#include "base/base.hpp"

namespace osf::shards {

class Copies {
public:
    Copies(u64 most, u64 row_bytes);

    std::shared_mutex mutex;                     // shared: find, and what it gave is read; exclusive: all the rest

    struct Slot {
        u64 id = 0, tag = 0;
        u16 host = 0;
        u8 wanted = 0;                           // how often, saturating, halved now and then
        bool taken = false, staged = false, used = false;  // used: since the last refresh
        u32 promised = 0;                        // the last batch that was asked for early, and has it
    };
    // Its number, or NONE. Counts `times` look-ups of it.
    static constexpr u32 NONE = ~0u;
    u32 find(u64 id, u32 times = 1);
    bool promise(u64 id, u32 batch);             // whether it is here; it stays until two later batches were asked for
    const char* row(u32 slot) const { return rows_.data() + u64(slot) * row_bytes_; }
    Slot& slot(u32 number) { return slots_[number]; }
    u32 slots() const { return u32(slots_.size()); }

    void offer(u64 id, u16 host, u64 tag, const char* row, u32 times);  // a row that was missed so often
    void promote(u64 id, u32 times);             // a staged row that was used
    void stage(u64 id, u16 host, u64 tag, const char* row);
    void make_room(u64 staged) { stage_most_ = std::max(stage_most_, staged); }
    std::atomic<u32> batch{2};                   // how many were asked for early
    void replace(u32 slot, u64 tag, const char* row);
    void drop(u64 id);
    void drop_slot(u32 slot);
    u64 moved = 0;                               // grows when a row that was found may be another by now
    u64 hot() const { return hot_; }
    u64 staged() const { return staged_; }

private:
    u32 slot_of(u64 id) const;
    u32 wanted(u64 id) const;
    void note(u64 id, u32 times);
    void age(u32 times);
    u32 take_slot();
    void put(u32 slot, u64 id, u16 host, u64 tag, const char* row, bool staged);
    bool make_way(u32 wanted);                   // for a row that is wanted so often; false: the others are more wanted
    void grow_index();
    u64 place(u64 id) const { return hash(id, 0) & (index_.size() - 1); }
    static u64 hash(u64 id, u64 seed) {
        id = (id + seed) * 0x9e3779b97f4a7c15ull;
        id ^= id >> 32;
        id *= 0xd6e8feb86659fd93ull;
        return id ^ id >> 32;
    }

    const u64 most_, row_bytes_;
    u64 stage_most_ = 0, hot_ = 0, staged_ = 0, uses_ = 0, random_ = 88172645463325252ull;
    std::vector<Slot> slots_;
    std::vector<char> rows_;
    std::vector<u32> index_, free_;              // index: slot + 1, by hash, open addressing
    std::deque<std::pair<u32, u64>> order_;      // of staged rows: slot and id
    std::vector<u32> hot_list_;                  // slots that are taken and not staged, to draw from
    std::vector<u32> hot_at_;                    // where a slot is in it
    std::vector<u8> sketch_;
};

}  // namespace osf::shards
