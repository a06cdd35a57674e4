// Which block goes first: the one place that knows. A leaf with the lowest priority is evicted; a block before others is not asked
// until they are gone, and then has inherited their use. So a match counts only at the last block it found.
//
// A priority is in blocks put (KvHead::clock) and must never fall while its block lives: the queue looks again only at those
// that come out lowest. Recency: the clock at the last use. Frequency: every doubling of the matches that went through is worth
// another FREQUENT of the pool's size. Cost: what lies deep in a prompt costs more to compute again (attention looks back on
// all before it); DEEP blocks of depth double it.
#pragma once

#include <algorithm>
#include <bit>

#include "kv_format.hpp"

namespace osf {

constexpr double KV_FREQUENT = 0.25, KV_DEEP = 16384;

inline u64 kv_priority(const KvEntry& entry, const KvHead& head) {
    const double doublings = double(std::bit_width(1u + load(entry.hits, std::memory_order_relaxed))) - 1;
    const double cost = 1 + std::min(1.0, double(entry.position) / KV_DEEP);
    return load(entry.used, std::memory_order_relaxed) + u64(doublings * cost * KV_FREQUENT * head.slots);
}

inline void kv_began(KvEntry& entry, u64 clock) {
    store(entry.used, clock, std::memory_order_relaxed);
    store(entry.hits, 0u, std::memory_order_relaxed);
}

inline void kv_touch(KvEntry& entry, u64 clock) {
    if (load(entry.used, std::memory_order_relaxed) < clock) store(entry.used, clock, std::memory_order_relaxed);
}

inline void kv_match(KvEntry& entry, u64 clock) {
    kv_touch(entry, clock);
    if (load(entry.hits, std::memory_order_relaxed) < 1u << 30) std::atomic_ref<u32>(entry.hits).fetch_add(1, std::memory_order_relaxed);
}

// A child goes; the matches that ended there went through its parent too.
inline void kv_inherit(KvEntry& parent, const KvEntry& child) {
    kv_touch(parent, load(child.used, std::memory_order_relaxed));
    if (load(parent.hits, std::memory_order_relaxed) < 1u << 30)
        std::atomic_ref<u32>(parent.hits).fetch_add(load(child.hits, std::memory_order_relaxed), std::memory_order_relaxed);
}

}  // namespace osf
