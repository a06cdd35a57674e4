// Which block goes first: the one place that knows. Of some leaves the one with the lowest value is evicted; a block before others is
// not asked until they are gone.
//
// Value is what room is worth: the chance that a block is used again, for the time it would have to be kept until then (a Gittins
// index; LHD, Beckmann et al., NSDI 2018, is near). Blocks are of classes, and for each class the pool learns how old blocks are when they are
// used again, if ever (kv/learn.cpp). A block that was used again is of a class by how often, and by the mean time between its uses: so the
// pool tells what is popular from what was. One that was not is of a class by what foretells another turn of a conversation: how many
// there were, whether the last one brought much that was new, and whether the block was a prompt's last. What lies deep in a
// prompt costs more to compute again (attention looks back on all before it): DEEP tokens of depth double the value.
//
// Time is in blocks found and put (KvHead::clock), so that it runs alike whether much is found or little. Ages are in steps that grow by a
// cube root of two, from a fraction of the pool's size on.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "kv/format.hpp"

namespace osf::kv {

constexpr u32 KV_TURNS = 5, KV_WIDE = 8;        // turns that are told apart; blocks that are much
constexpr u32 KV_OFTEN = 5, KV_GAPS = 10;       // steps of uses (1, 2, 4, 8, 16), and of the time between them, an octave each
constexpr u32 KV_MEAN = 8;                      // the mean time between uses is of about so many
constexpr u32 KV_NEW = 4 * KV_TURNS;            // classes of blocks that were not used again
static_assert(KV_CLASSES == KV_NEW + KV_OFTEN * KV_GAPS);
constexpr u32 KV_LATE = 12;                     // steps of age: a use that comes so much later than usual ends what was
constexpr float KV_DEEP = 262'144;

// A habit: bits 0 to 3 turns of the conversation, bit 4 the last one was wide, bit 5 the last block of a prompt, bits 8 to 15 the mean
// age at which it was used again, in quarters of a step.
constexpr u32 kv_habit(u32 turns, bool wide) { return std::min(turns, 15u) | u32(wide) << 4; }
constexpr u32 kv_turns(u32 habit) { return habit & 15; }
constexpr u32 kv_gap(u32 habit) { return habit >> 8 & 0xff; }
constexpr u32 KV_TIP = 1u << 5;

// How many of the uses before still count, for one that comes now: what was popular and then was not is as good as used once. Its mean
// would else call it popular for as many uses again.
constexpr u32 kv_still(u32 hits, u32 habit, u32 age) { return 4 * age + 2 > kv_gap(habit) + 4 * KV_LATE ? std::min(hits, 1u) : hits; }

// The habit of a block that was used `hits` times before (those that still count), and now again at an age of so many steps.
constexpr u32 kv_used_again(u32 habit, u32 hits, u32 age) {
    const u32 weight = std::min(hits, KV_MEAN);
    const u32 gap = (kv_gap(habit) * weight + 4 * age + 2 + (weight + 1) / 2) / (weight + 1);
    return (habit & 0xff) | std::min(gap, 0xffu) << 8;
}

// Below KV_CLASSES whatever is in the words.
constexpr u32 kv_class(u32 hits, u32 habit) {
    if (!hits) return std::min(kv_turns(habit), KV_TURNS - 1) * 4 + (habit >> 4 & 3);
    const u32 octave = std::clamp(kv_gap(habit) / 12, 1u, KV_GAPS);  // the first two are one
    return KV_NEW + (std::min(u32(std::bit_width(hits)), KV_OFTEN) - 1) * KV_GAPS + octave - 1;
}
static_assert(kv_class(~0u, ~0u) == KV_CLASSES - 1 && kv_class(0, ~0u) == KV_NEW - 1);

inline double kv_age_unit(const KvHead& head) { return std::max(1.0, head.slots / 256.0); }
inline float kv_steps(u64 age, const KvHead& head) { return 3 * std::log2(1 + float(age) / float(kv_age_unit(head))); }
inline u32 kv_age(u64 age, const KvHead& head) { return std::min(KV_AGES - 1, u32(kv_steps(age, head))); }
inline double kv_age_from(u32 bucket, const KvHead& head) { return kv_age_unit(head) * (std::exp2(bucket / 3.0) - 1); }

inline u32 kv_class(const KvEntry& entry) {
    return kv_class(load(entry.hits, std::memory_order_relaxed), load(entry.habit, std::memory_order_relaxed));
}
inline u64 kv_since(u64 used, u64 clock) { return used < clock ? clock - used : 0; }

// What a class is worth at an age of so many steps; a value is that of the middle of its step.
inline float kv_value_at(u32 kind, float steps, const KvTables& tables) {
    const float from = std::clamp(steps - 0.5f, 0.0f, float(KV_AGES - 1));
    const u32 step = u32(from);
    const float value = load(tables.values[kind][step], std::memory_order_relaxed);
    const float next = load(tables.values[kind][std::min(step + 1, KV_AGES - 1)], std::memory_order_relaxed);
    return value + (next - value) * (from - float(step));
}

// What lies at this place of a prompt, with this past, at an age of so many steps. Between the middles of two octaves it is between the values of both:
// blocks that differ a little differ a little in value. Damaged values count as nothing.
inline float kv_value(u32 hits, u32 habit, float steps, u32 position, const KvHead& head, const KvTables& tables) {
    const u32 kind = kv_class(hits, habit), octave = (kind - KV_NEW) % KV_GAPS;
    float value = kv_value_at(kind, steps, tables);
    const float off = float(kv_gap(habit)) / 12 - 1.5f - float(octave);  // from the middle of its octave
    if (hits && (off < 0 ? octave > 0 : octave + 1 < KV_GAPS))
        value += (kv_value_at(off < 0 ? kind - 1 : kind + 1, steps, tables) - value) * std::abs(off);
    const float cost = 1 + std::min(1.0f, float(position) * float(head.block_tokens) / KV_DEEP);
    return std::max(0.0f, value * cost);
}

// A prompt may crowd out so many blocks, whatever they are worth: what was put is there, unless it is long. More, only if they are worth
// less than what comes. A pool that is small, or has seen little yet, takes everything: what it knows of habits is a guess.
inline u32 kv_welcome(const KvHead& head) {
    const bool guesses = head.slots <= 64 || load(head.clock, std::memory_order_relaxed) / 8 < head.slots;
    return guesses ? head.slots : std::max(8u, head.slots / 32);
}

// Lowest first: by value, and where that is equal by last use.
struct KvWorth {
    float value;
    u64 used;
    u32 slot;
    bool operator>(const KvWorth& other) const { return value != other.value ? value > other.value : used > other.used; }
};

inline KvWorth kv_worth(const KvEntry& entry, u32 slot, const KvHead& head, const KvTables& tables, u64 clock) {
    const u64 used = load(entry.used, std::memory_order_relaxed);
    const u32 hits = load(entry.hits, std::memory_order_relaxed), habit = load(entry.habit, std::memory_order_relaxed);
    return {kv_value(hits, habit, kv_steps(kv_since(used, clock), head), entry.position, head, tables), used, slot};
}

inline void kv_began(KvEntry& entry, u64 clock, u32 hits, u32 habit) {
    store(entry.used, clock, std::memory_order_relaxed);
    store(entry.hits, hits, std::memory_order_relaxed);
    store(entry.habit, habit, std::memory_order_relaxed);
}

// Without a lock: two at a time may count as one.
inline void kv_count(float& seen) { store(seen, load(seen, std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

// A match went through this block. One right after another says nothing new, and is not written: many readers of a hot prompt
// would else take its lines from each other.
inline void kv_match(KvEntry& entry, u64 clock, const KvHead& head, KvTables& tables) {
    const u32 age = kv_age(kv_since(load(entry.used, std::memory_order_relaxed), clock), head);
    if (!age) return;
    const u32 hits = load(entry.hits, std::memory_order_relaxed), habit = load(entry.habit, std::memory_order_relaxed);
    kv_count(tables.recent[kv_class(hits, habit)][age]);
    const u32 still = kv_still(hits, habit, age);
    kv_began(entry, clock, std::min(still + 1, 1u << 30), kv_used_again(habit, still, age));
}

// And ended here, having found all but `missing` blocks: the conversation has had another turn.
inline void kv_match_end(KvEntry& last, bool alone, u64 missing) {
    const u32 habit = load(last.habit, std::memory_order_relaxed), turns = alone ? 0 : kv_turns(habit) + 1;
    store(last.habit, (habit & ~0xffu) | kv_habit(turns, missing >= KV_WIDE), std::memory_order_relaxed);
}

// A child goes. What was put behind its parent used the parent too, though no match did.
inline void kv_inherit(KvEntry& parent, const KvEntry& child) {
    const u64 used = load(child.used, std::memory_order_relaxed);
    if (load(parent.used, std::memory_order_relaxed) < used) store(parent.used, used, std::memory_order_relaxed);
}

}  // namespace osf::kv
