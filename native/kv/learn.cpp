// What the policy learns: for each class of blocks, at what ages they are used again, and from that what they are worth.
//
// A life is from one use of a block to the next. Matches and puts count those that end (kv_match, recall); blocks and ghosts that were not
// used again yet are counted by their age, every so many blocks, from a sample. How that count has grown since the last time says how many
// lives came to each age meanwhile, so that all figures are of the same time, and fade together: the risk at an age is what ended or
// grew from there on (a life table with censored lives, Kaplan and Meier, 1958, of a window).
//
// Little is known of a class at first. So it begins with what a block of its kind would do whose uses come by chance, at a rate that its past
// tells: (uses + 1/2) / (time that they took + age + the pool's size). That alone is a fair policy, between least often and
// least recently used. How far the rate is off is learned for all classes of as many uses, then for the class itself.
// Neighbours in gap, uses and age lend each other some of what they saw.
//
// Lives do not end one by one. A job that is run again uses thousands of blocks, and is one event: it does not say that the next job will be. So what
// was seen counts by the number of events, and an event is as large as the uses of one time vary more than by chance (together()).
#include <algorithm>
#include <array>

#include "kv/policy.hpp"
#include "kv/pool.hpp"

namespace osf::kv {

constexpr u32 SAMPLE = 16384;                    // entries, and four times as many ghosts: a millisecond
constexpr double FADE = 0.95;                    // what is left of old counts, every time
constexpr double PRIOR = 20;                     // lives as expected that are added to those that were seen, of all classes of as many uses
constexpr double EVENTS = 7;                     // and events, of one class
constexpr double USES_LEND = 0.2;                // of what was seen of blocks that were used half or twice as often
constexpr double BLUR = 0.2;                     // of the count at an age that goes to each of its neighbours

using Ages = std::array<double, KV_AGES>;

struct Lives {                                   // that ended by a use, and that went on or out of sight, by age
    Ages reused{}, other{};
    Ages squares{};                              // of those that ended, at each time
    double classes = 1;                          // that this is the sum of
    void add(const Lives& more, double share = 1) {
        for (u32 age = 0; age < KV_AGES; age++) {
            reused[age] += share * more.reused[age];
            other[age] += share * more.other[age];
            squares[age] += share * more.squares[age];
        }
        classes += share;
    }
};

static Ages blurred(const Ages& counts) {
    Ages result;
    for (u32 age = 0; age < KV_AGES; age++)
        result[age] = (1 - 2 * BLUR) * counts[age] + BLUR * (counts[age ? age - 1 : 0] + counts[std::min(age + 1, KV_AGES - 1)]);
    return result;
}

// Calls look(age, used again there, lives that came to it); growth is a difference, and may be below nothing.
template <class Look>
static void each_age(const Lives& lives, Look look) {
    double risk = 0;
    for (u32 age = 0; age < KV_AGES; age++) risk += lives.reused[age] + lives.other[age];
    for (u32 age = 0; age < KV_AGES; age++) {
        const double reused = lives.reused[age], other = lives.other[age];
        look(age, reused, std::max(reused, risk - std::max(0.0, other) / 2));
        risk -= reused + other;
    }
}

// How many lives end together, around an age: the variance of their number at a time, over its mean. 1 where they end one by one, by chance.
static double together(const Lives& lives, u32 age) {
    const u32 first = age ? age - 1 : 0, last = std::min(age + 1, KV_AGES - 1);
    double sum = 0, squares = 0;
    for (u32 at = first; at <= last; at++) {
        sum += lives.reused[at];
        squares += lives.squares[at];
    }
    const double counts = lives.classes * (last - first + 1) / (1 - FADE);
    return sum > 0 ? std::max(1.0, squares / sum - sum / counts) : 1;
}

// How likely a block of a class is used again at some age it has come to: as its past foretells.
static Ages foretold(u32 kind, const Ages& width, const KvHead& head) {
    constexpr double USES[KV_OFTEN] = {1, 2.4, 5.2, KV_MEAN, KV_MEAN};
    const double uses = kind < KV_NEW ? 0 : USES[(kind - KV_NEW) / KV_GAPS];
    const double gap = kind < KV_NEW ? 0 : 1.3 * kv_age_from(3 * ((kind - KV_NEW) % KV_GAPS + 1), head) + kv_age_unit(head);
    Ages hazard;
    for (u32 age = 0; age < KV_AGES; age++) {
        const double now = kv_age_from(age, head) + width[age] / 2;
        hazard[age] = 1 - std::exp(-width[age] * (uses + 0.5) / (uses * gap + now + head.slots));
    }
    return hazard;
}

struct Tally {                                   // of blocks used again: so many, and as many as foretold
    double seen = 0, expected = 0;
    void add(const Lives& lives, const Ages& hazard) {
        each_age(lives, [&](u32 age, double reused, double risk) {
            seen += reused;
            expected += risk * hazard[age];
        });
    }
    double factor(double usual) const { return (seen + PRIOR * usual) / (expected + PRIOR); }
};

static Ages hazards(const Lives& lives, const Ages& expected, double factor) {
    Ages hazard;
    const Lives smooth{blurred(lives.reused), blurred(lives.other)};
    each_age(smooth, [&](u32 age, double reused, double risk) {
        const double usual = 1 - std::pow(1 - expected[age], factor), prior = EVENTS * together(lives, age);
        hazard[age] = std::min(0.999, (reused + prior * usual) / (risk + prior));
    });
    return hazard;
}

static void set_values(float* values, const Ages& hazard, const Ages& width) {
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

static float sane(const float& count) {
    const float value = load(count, std::memory_order_relaxed);
    return value > -1e15f && value < 1e15f ? value : 0;
}

void KvPool::learn() {
    const u64 clock = load(head_->clock), every = std::max(1000u, head_->slots / 2);
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

void KvPool::learn_now(u64 clock) {
    std::vector<Ages> waiting(KV_CLASSES);
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
        const KvShade shade(load(ghosts_[at].what, std::memory_order_relaxed));
        waiting[kv_class(shade.hits, shade.habit)][kv_age(u32(clock) - shade.used, *head_)] += weight;
    });
    Ages width;
    for (u32 age = 0; age < KV_AGES; age++) width[age] = kv_age_from(age + 1, *head_) - kv_age_from(age, *head_);
    std::vector<Lives> lives(KV_CLASSES);
    std::vector<Ages> expected(KV_CLASSES);
    std::array<Tally, KV_OFTEN + 1> often;       // by uses; the first: those not used again
    Tally all;
    auto uses_of = [](u32 kind) { return kind < KV_NEW ? 0 : 1 + (kind - KV_NEW) / KV_GAPS; };
    for (u32 kind = 0; kind < KV_CLASSES; kind++) {
        Lives& own = lives[kind];
        for (u32 age = 0; age < KV_AGES; age++) {
            float &reused = tables_->reused[kind][age], &others = tables_->others[kind][age], &squares = tables_->squares[kind][age];
            const double recent = std::max(0.0f, sane(tables_->recent[kind][age]));
            own.reused[age] = std::max(0.0f, sane(reused)) + recent;
            own.squares[age] = std::max(0.0f, sane(squares)) + recent * recent;
            own.other[age] = sane(others) + waiting[kind][age];  // it holds what came before, faded, less what waited then
            store(tables_->recent[kind][age], 0.0f, std::memory_order_relaxed);
            store(reused, float(own.reused[age] * FADE), std::memory_order_relaxed);
            store(squares, float(own.squares[age] * FADE), std::memory_order_relaxed);
            store(others, float(own.other[age] * FADE - waiting[kind][age]), std::memory_order_relaxed);
        }
        expected[kind] = foretold(kind, width, *head_);
        often[uses_of(kind)].add(own, expected[kind]);
        all.add(own, expected[kind]);
    }
    for (u32 kind = 0; kind < KV_CLASSES; kind++) {
        Lives own = lives[kind];
        const u32 gap = (kind - KV_NEW) % KV_GAPS;
        if (kind >= KV_NEW && gap) own.add(lives[kind - 1]);
        if (kind >= KV_NEW && gap + 1 < KV_GAPS) own.add(lives[kind + 1]);
        if (kind >= KV_NEW + KV_GAPS) own.add(lives[kind - KV_GAPS], USES_LEND);
        if (kind >= KV_NEW && kind + KV_GAPS < KV_CLASSES) own.add(lives[kind + KV_GAPS], USES_LEND);
        const double factor = often[uses_of(kind)].factor(all.factor(1));
        set_values(tables_->values[kind], hazards(own, expected[kind], factor), width);
    }
}

}  // namespace osf::kv
