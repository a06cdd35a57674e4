// Which block goes first: the one place that knows. Of some leaves the one with the lowest value is evicted; a block before others is
// not asked until they are gone, and then has inherited their use. So a match counts only at the last block it found.
//
// Value is what room is worth: the chance that a block is used again, for the time it would have to be kept until then (a Gittins
// index; LHD, Beckmann et al., NSDI 2018, is near). Blocks are of classes, and for each class the pool learns how old blocks are when they are
// used again, if ever (kv_learn.cpp). A class is made of what foretells another turn of a conversation: how many there were, or how often
// the block was used, whether the last turn brought much that was new, and whether the block was a prompt's last. What lies deep in a
// prompt costs more to compute again (attention looks back on all before it): DEEP tokens of depth double the value.
//
// Time is in blocks put (KvHead::clock), ages in steps that grow by a cube root of two, from a fraction of the pool's size on.
#pragma once

#include <algorithm>
#include <cmath>

#include "kv_format.hpp"

namespace osf {

constexpr u32 KV_TURNS = 5, KV_WIDE = 8;        // turns that are told apart; blocks that are much
constexpr float KV_DEEP = 262'144;

// A habit: bits 0 to 3 turns of the conversation, bit 4 the last one was wide, bit 5 the last block of a prompt.
constexpr u32 kv_habit(u32 turns, bool wide) { return std::min(turns, 15u) | u32(wide) << 4; }
constexpr u32 kv_turns(u32 habit) { return habit & 15; }
constexpr u32 KV_TIP = 1u << 5;

// Below KV_CLASSES whatever is in the words.
constexpr u32 kv_class(u32 hits, u32 habit) {
    return std::min(std::max(kv_turns(habit), hits), KV_TURNS - 1) * 4 + (habit >> 4 & 3);
}
static_assert(kv_class(~0u, ~0u) == KV_CLASSES - 1);

inline double kv_age_unit(const KvHead& head) { return std::max(1.0, head.slots / 256.0); }
inline u32 kv_age(u64 age, const KvHead& head) {
    return std::min(KV_AGES - 1, u32(3 * std::log2(1 + float(age) / float(kv_age_unit(head)))));
}
inline double kv_age_from(u32 bucket, const KvHead& head) { return kv_age_unit(head) * (std::exp2(bucket / 3.0) - 1); }

inline u32 kv_class(const KvEntry& entry) {
    return kv_class(load(entry.hits, std::memory_order_relaxed), load(entry.habit, std::memory_order_relaxed));
}
inline u64 kv_since(u64 used, u64 clock) { return used < clock ? clock - used : 0; }

// Lowest first: by value, and where that is equal by last use.
struct KvWorth {
    float value;
    u64 used;
    u32 slot;
    bool operator>(const KvWorth& other) const { return value != other.value ? value > other.value : used > other.used; }
};

inline KvWorth kv_worth(const KvEntry& entry, u32 slot, const KvHead& head, const KvTables& tables, u64 clock) {
    const u64 used = load(entry.used, std::memory_order_relaxed);
    const float value = load(tables.values[kv_class(entry)][kv_age(kv_since(used, clock), head)], std::memory_order_relaxed);
    const float cost = 1 + std::min(1.0f, float(entry.position) * float(head.block_tokens) / KV_DEEP);
    return {std::max(0.0f, value * cost), used, slot};  // damaged ones count as nothing
}

inline void kv_began(KvEntry& entry, u64 clock, u32 hits, u32 habit) {
    store(entry.used, clock, std::memory_order_relaxed);
    store(entry.hits, hits, std::memory_order_relaxed);
    store(entry.habit, habit, std::memory_order_relaxed);
}

// A match that found `hit` blocks of `asked` ended here. What it teaches counts for every block of it, for nearly all were last used when
// this one was. Without a lock: two at a time may count as one.
inline void kv_match(KvEntry& entry, u64 clock, u64 asked, u64 hit, const KvHead& head, KvTables& tables) {
    const u64 used = load(entry.used, std::memory_order_relaxed);
    float& seen = tables.reused[kv_class(entry)][kv_age(kv_since(used, clock), head)];
    store(seen, load(seen, std::memory_order_relaxed) + float(hit), std::memory_order_relaxed);
    const u32 turns = hit > 1 ? kv_turns(load(entry.habit, std::memory_order_relaxed)) + 1 : 0;
    store(entry.habit, kv_habit(turns, asked - hit >= KV_WIDE), std::memory_order_relaxed);
    const u32 hits = load(entry.hits, std::memory_order_relaxed);
    if (hits < 1u << 30) store(entry.hits, hits + 1, std::memory_order_relaxed);
    if (used < clock) store(entry.used, clock, std::memory_order_relaxed);
}

// A child goes; the matches that ended there went through its parent too.
inline void kv_inherit(KvEntry& parent, const KvEntry& child) {
    const u64 used = load(child.used, std::memory_order_relaxed);
    const u32 hits = load(child.hits, std::memory_order_relaxed);
    if (load(parent.hits, std::memory_order_relaxed) < hits) store(parent.hits, hits, std::memory_order_relaxed);
    if (load(parent.used, std::memory_order_relaxed) > used) return;
    store(parent.used, used, std::memory_order_relaxed);
    store(parent.habit, load(child.habit, std::memory_order_relaxed) & ~KV_TIP, std::memory_order_relaxed);
}

}  // namespace osf
