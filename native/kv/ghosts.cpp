// What the policy remembers of blocks that are not here: those that went for want of room, and those that a put could not have for it.
// Without them a pool would learn only from what it kept, and never what it always evicts too early. Ghosts are hints, as tables are:
// read without checks, so every index is bounded by the type it comes from, and written in any order.
#include <algorithm>

#include "kv/policy.hpp"
#include "kv/pool.hpp"

namespace osf::kv {

static u64 tag_of(const u64* key) { return load(key[1], std::memory_order_relaxed) | 1; }

KvGhost* KvPool::ghosts_of(u64 tag) const {
    const u64 sets = u64(head_->slots) * KV_GHOSTS / KV_WAYS;
    return ghosts_ + u64((unsigned __int128)(tag)*sets >> 64) * KV_WAYS;
}

KvGhost* KvPool::ghost_of(const KvKey& key) const {
    const u64 tag = tag_of(key.words);
    KvGhost* set = ghosts_of(tag);
    for (u32 way = 0; way < KV_WAYS; way++)
        if (load(set[way].tag, std::memory_order_relaxed) == tag) return &set[way];
    return nullptr;
}

// In the place of the oldest of its set. What it knew of that one is over: a life whose end nobody saw.
void KvPool::remember(u64 tag, u64 used, const KvPast& past) {
    const u32 clock = u32(load(head_->clock));
    KvGhost* set = ghosts_of(tag);
    KvGhost* place = set;
    u32 oldest = 0;
    for (u32 way = 0; way < KV_WAYS; way++) {
        const u64 is = load(set[way].tag, std::memory_order_relaxed);
        const u32 age = is && is != tag ? clock - u32(load(set[way].what, std::memory_order_relaxed)) : ~0u;
        if (age < oldest) continue;
        oldest = age;
        place = &set[way];
    }
    const u64 is = load(place->tag, std::memory_order_relaxed);
    if (is && is != tag) {
        const KvShade shade(load(place->what, std::memory_order_relaxed));
        kv_count(tables_->others[kv_class(shade.hits, shade.habit)][kv_age(clock - shade.used, *head_)]);
    }
    store(place->what, (used & 0xffff'ffff) | u64(std::min(past.hits, 0xffffu)) << 32 | u64(past.habit & 0xffff) << 48, std::memory_order_relaxed);
    store(place->tag, tag, std::memory_order_relaxed);
}

void KvPool::remember(const KvEntry& entry) {
    remember(tag_of(entry.key), load(entry.used, std::memory_order_relaxed),
             {load(entry.hits, std::memory_order_relaxed), load(entry.habit, std::memory_order_relaxed)});
}

// What its past is, used now as a part of a put with this habit.
KvPast KvPool::past_of(const KvKey& key, u32 habit, u32* age) const {
    const KvGhost* found = ghost_of(key);
    if (!found) return {0, habit};
    const KvShade shade(load(found->what, std::memory_order_relaxed));
    const u32 since = kv_age(u32(load(head_->clock)) - shade.used, *head_);
    if (age) *age = since;
    const u32 still = kv_still(shade.hits, shade.habit, since);
    return {still + 1, (habit & 0xff) | (kv_used_again(shade.habit, still, since) & ~0xffu)};
}

KvPast KvPool::recall(const KvKey& key, u32 habit) {
    u32 age = 0;
    KvGhost* found = ghost_of(key);
    const KvPast past = past_of(key, habit, &age);
    if (!found) return past;
    const KvShade shade(load(found->what, std::memory_order_relaxed));
    kv_count(tables_->recent[kv_class(shade.hits, shade.habit)][age]);
    store(found->tag, u64(0), std::memory_order_relaxed);
    return past;
}

void KvPool::pass_over(std::span<const KvKey> keys, const KvUse& use) {
    Guard guard(*this);
    const u64 clock = load(head_->clock);
    for (const KvKey& key : keys) remember(tag_of(key.words), clock, recall(key, use.habit | (&key == &keys.back() ? KV_TIP : 0)));
}

// Of a put. A match before it has counted the turn at `parent`, if that was found; ghosts may know more of the conversation.
KvUse KvPool::use_of(std::span<const KvKey> missing, u32 parent, u32 position) const {
    u32 turns = parent == NO_SLOT ? 0 : kv_turns(load(entries_[parent].habit, std::memory_order_relaxed));
    u64 known = 0;
    for (; known < missing.size(); known++) {
        const KvGhost* found = ghost_of(missing[known]);
        if (!found) break;
        if (position + known) turns = std::max(turns, kv_turns(KvShade(load(found->what, std::memory_order_relaxed)).habit) + 1);
    }
    const u32 habit = kv_habit(turns, missing.size() - known >= KV_WIDE);
    if (parent != NO_SLOT) {
        u32& before = entries_[parent].habit;
        store(before, (load(before, std::memory_order_relaxed) & ~0xffu) | habit, std::memory_order_relaxed);
    }
    return {habit, position + u32(missing.size()) - 1};
}

float KvPool::value_of(const KvKey& key, const KvUse& use, u32 position) const {
    const KvPast past = past_of(key, use.habit | (position == use.last ? KV_TIP : 0), nullptr);
    return kv_value(past.hits, past.habit, 0, position, *head_, *tables_);
}

}  // namespace osf::kv
