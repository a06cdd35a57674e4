// What the policy learns: for each class of blocks, at what ages they are used again, and from that what they are worth.
//
// Blocks used again while they are here are counted by matches (kv_match). Those that were evicted leave a ghost, and are counted when
// they are put again: or else a pool would never learn of what it always evicts too early. Blocks and ghosts that were not used again
// yet say so by their age. Together that is a life table with censored lives (Kaplan and Meier, 1958), made anew every so many puts
// from a sample. All of it is hints: read without checks, so every index is bounded by the type it comes from, and written in any order.
#include <algorithm>
#include <array>

#include "kv_policy.hpp"
#include "kv_pool.hpp"

namespace osf {

constexpr u32 SAMPLE = 16384;                    // entries, and four times as many ghosts: a millisecond
constexpr double FADE = 0.98;                    // what is left of old counts, every time
constexpr double PRIOR = 5;

struct Ghost {
    u32 used, hits, habit;
    explicit Ghost(u64 what) : used(u32(what)), hits(what >> 32 & 0xffff), habit(u32(what >> 48)) {}
    u32 kind() const { return kv_class(hits, habit); }
};

static u64 tag_of(const u64* key) { return load(key[1], std::memory_order_relaxed) | 1; }

KvGhost* KvPool::ghosts_of(u64 tag) const {
    const u64 sets = u64(head_->slots) * KV_GHOSTS / KV_WAYS;
    return ghosts_ + u64((unsigned __int128)(tag)*sets >> 64) * KV_WAYS;
}

KvGhost* KvPool::ghost_of(u64 tag) const {
    KvGhost* set = ghosts_of(tag);
    for (u32 way = 0; way < KV_WAYS; way++)
        if (load(set[way].tag, std::memory_order_relaxed) == tag) return &set[way];
    return nullptr;
}

void KvPool::remember(const KvEntry& entry) {
    const u64 tag = tag_of(entry.key), clock = load(head_->clock);
    KvGhost* set = ghosts_of(tag);
    KvGhost* place = set;
    u32 oldest = 0;
    for (u32 way = 0; way < KV_WAYS; way++) {
        const u64 is = load(set[way].tag, std::memory_order_relaxed);
        const u32 age = is && is != tag ? u32(clock) - u32(load(set[way].what, std::memory_order_relaxed)) : ~0u;
        if (age < oldest) continue;
        oldest = age;
        place = &set[way];
    }
    const u64 hits = std::min(load(entry.hits, std::memory_order_relaxed), 0xffffu);
    const u64 habit = load(entry.habit, std::memory_order_relaxed), used = load(entry.used, std::memory_order_relaxed);
    store(place->what, (used & 0xffff'ffff) | hits << 32 | habit << 48, std::memory_order_relaxed);
    store(place->tag, tag, std::memory_order_relaxed);
}

u32 KvPool::recall(const KvKey& key) {
    const u64 tag = tag_of(key.words);
    KvGhost* found = ghost_of(tag);
    if (!found) return 0;
    const Ghost ghost(load(found->what, std::memory_order_relaxed));
    float& seen = tables_->reused[ghost.kind()][kv_age(u32(head_->clock) - ghost.used, *head_)];
    store(seen, load(seen, std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    store(found->tag, u64(0), std::memory_order_relaxed);
    return ghost.hits + 1;
}

// Of a put. A match before it has counted the turn at `parent`, if that was found; ghosts may know more of the conversation.
KvUse KvPool::use_of(std::span<const KvKey> missing, u32 parent, u32 position) const {
    u32 turns = parent == NO_SLOT ? 0 : kv_turns(load(entries_[parent].habit, std::memory_order_relaxed));
    u64 known = 0;
    for (; known < missing.size(); known++) {
        const KvGhost* found = ghost_of(tag_of(missing[known].words));
        if (!found) break;
        if (position + known) turns = std::max(turns, kv_turns(Ghost(load(found->what, std::memory_order_relaxed)).habit) + 1);
    }
    const u32 habit = kv_habit(turns, missing.size() - known >= KV_WIDE);
    if (parent != NO_SLOT) store(entries_[parent].habit, habit, std::memory_order_relaxed);
    return {habit, position + u32(missing.size()) - 1};
}

void KvPool::learn() {
    const u64 clock = load(head_->clock), every = std::max(1000u, head_->slots / 4);
    if (clock < head_->learn_at && head_->learn_at - clock <= every) return;
    head_->learn_at = clock + every;
    learn_now(clock);
}

u64 KvPool::random() {                           // splitmix64
    u64 mix = random_ += 0x9e3779b97f4a7c15;
    mix = (mix ^ mix >> 30) * 0xbf58476d1ce4e5b9;
    mix = (mix ^ mix >> 27) * 0x94d049bb133111eb;
    return mix ^ mix >> 31;
}

using Ages = std::array<double, KV_AGES>;

// How likely a block that has come to some age is used again at that age, from counts of those that were and of those that wait. As many
// blocks as PRIOR like `usual` are added: a class of few blocks is taken to be like all.
static Ages hazards(const Ages& reused, const Ages& waiting, const Ages& usual) {
    Ages hazard{};
    double risk = 0;
    for (u32 age = 0; age < KV_AGES; age++) risk += reused[age] + waiting[age];
    for (u32 age = 0; age < KV_AGES; age++) {
        hazard[age] = std::min(0.999, (reused[age] + PRIOR * usual[age]) / std::max(1.0, risk - waiting[age] / 2 + PRIOR));
        risk = std::max(0.0, risk - reused[age] - waiting[age]);
    }
    return hazard;
}

static void set_values(float* values, const Ages& hazard, const KvHead& head) {
    Ages width;
    for (u32 age = 0; age < KV_AGES; age++) width[age] = kv_age_from(age + 1, head) - kv_age_from(age, head);
    for (u32 from = 0; from < KV_AGES; from++) {
        double alive = 1, chance = 0, kept = 0, best = 0;
        for (u32 age = from; age < KV_AGES; age++) {
            const double now = alive * hazard[age];
            chance += now;
            kept += width[age] * (alive - now / 2);
            alive -= now;
            best = std::max(best, chance / kept);
        }
        store(values[from], float(best), std::memory_order_relaxed);
    }
}

void KvPool::learn_now(u64 clock) {
    std::vector<Ages> waiting(KV_CLASSES), reused(KV_CLASSES);
    auto sample = [&](u64 all, u64 most, auto look) {
        const u64 apart = div_up(all, most);     // one of so many, evenly
        for (u64 at = random() % apart; at < all; at += apart) look(at, double(apart));
    };
    sample(head_->slots, SAMPLE, [&](u64 at, double weight) {
        const KvEntry& entry = entries_[at];
        if (entry.state != kv_live) return;
        waiting[kv_class(entry)][kv_age(kv_since(load(entry.used, std::memory_order_relaxed), clock), *head_)] += weight;
    });
    sample(u64(head_->slots) * KV_GHOSTS, 4 * SAMPLE, [&](u64 at, double weight) {
        if (!load(ghosts_[at].tag, std::memory_order_relaxed)) return;
        const Ghost ghost(load(ghosts_[at].what, std::memory_order_relaxed));
        waiting[ghost.kind()][kv_age(u32(clock) - ghost.used, *head_)] += weight;
    });
    Ages all_reused{}, all_waiting{};
    for (u32 kind = 0; kind < KV_CLASSES; kind++) {
        for (u32 age = 0; age < KV_AGES; age++) {
            float& seen = tables_->reused[kind][age];
            const float count = load(seen, std::memory_order_relaxed);
            reused[kind][age] = count >= 0 && count < 1e12f ? count : 0;
            store(seen, float(reused[kind][age] * FADE), std::memory_order_relaxed);
            all_reused[age] += reused[kind][age];
            all_waiting[age] += waiting[kind][age];
        }
    }
    const Ages usual = hazards(all_reused, all_waiting, {});
    for (u32 kind = 0; kind < KV_CLASSES; kind++) set_values(tables_->values[kind], hazards(reused[kind], waiting[kind], usual), *head_);
}

}  // namespace osf
