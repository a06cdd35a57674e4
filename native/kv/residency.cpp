#include "kv/residency.hpp"

#include <algorithm>
#include <exception>

#include "kv/pool.hpp"
#include "tiers/client.hpp"

namespace osf::kv {

constexpr u32 NOTES_MAX = 128;                   // to the keeper, of one prefetch
constexpr u64 GROUP = 32 * MIB;

// How many of them, at most so many, lie one behind the other.
static u64 neighbours(std::span<const u32> slots, u64 most) {
    u64 count = 1;
    while (count < std::min<u64>(most, slots.size()) && slots[count] == slots[0] + count) count++;
    return count;
}

void KvHold::take(TierClient& tiers, const void* at, u64 bytes) {
    tiers_ = &tiers;
    const u64 id = tiers.ask(Want::pin, at, bytes, 1 << 20);
    tiers.wait(id, -1);
    pins_.push_back(id);
}

u64 KvHold::take(const KvPool& pool, std::span<const u32> slots) {
    struct Run { u64 id, count; };
    std::vector<Run> runs;
    tiers_ = tiers_of(*pool.space);
    const u64 stride = pool.head().stride, most = std::max<u64>(1, tiers_->words().head().capacity * UNIT / 16 / stride);
    for (u64 at = 0, count; at < slots.size(); at += count) {
        count = neighbours(slots.subspan(at), most);
        runs.push_back({tiers_->ask(Want::pin, pool.block(slots[at]), count * stride, 1 << 20), count});
    }
    u64 held = 0;
    bool room = true;
    for (const Run& run : runs) {
        try {
            tiers_->wait(run.id, -1);
        } catch (const Error&) { room = false; }  // what flash cannot give back is as good as gone, too
        if (room) held += run.count, pins_.push_back(run.id);
        else tiers_->unpin(run.id);
    }
    return held;
}

void KvHold::drop() noexcept {
    for (u64 id : pins_) tiers_->unpin(id);
    pins_.clear();
}

bool KvPool::plain() const { return space->pager && tiers_of(*space)->plain(); }
bool KvPool::durable() const { return space->pager && tiers_of(*space)->words().head().durable; }

void KvPool::hold_metadata(char* base, u64 bytes) {
    if (!space->pager) return;
    metadata_.take(*tiers_of(*space), base, bytes);
    if (!plain()) metadata_.drop();              // once in memory, it stays there
}

u64 KvPool::group() const {
    const u64 most = space->pager ? std::min<u64>(GROUP, tiers_of(*space)->words().head().capacity * UNIT / 8) : GROUP;
    return std::max<u64>(1, most / head_->stride);
}

// Calls `work` for runs of units that are on flash, or on their way, of these blocks.
template <class F>
static void each_missing(const KvPool& pool, std::span<const u32> slots, u64 room, F work) {
    TierClient& tiers = *tiers_of(*pool.space);
    const u64 bytes = pool.head().block_bytes, longest = std::max<u64>(RUN, tiers.words().head().capacity / 8);
    u64 first = 0, end = 0;
    auto pass = [&] {
        if (first < end) work(tiers.unit(first), (end - first) * UNIT);
    };
    for (u32 slot : slots) {
        const char* at = pool.block(slot);
        for (u64 unit = tiers.unit_at(at), last = tiers.unit_at(at + bytes - 1); unit <= last; unit++) {
            const Tier tier = tiers.words().tier(unit);
            if (in_memory(tier) || tier == Tier::empty || (unit >= first && unit < end)) continue;
            if (unit != end || end - first >= longest) pass(), first = end = unit;
            if (!room--) return;
            end++;
        }
    }
    pass();
}

// As much as memory has room for, so that the last ones do not drive out the first.
void KvPool::prefetch(std::span<const u32> slots) const {
    if (!space->pager) return;
    const TiersHead& head = tiers_of(*space)->words().head();
    u32 notes = 0;
    each_missing(*this, slots, (head.capacity - std::min(head.capacity, load(head.pinned))) / 4 * 3, [&](const char* at, u64 bytes) {
        if (notes++ < NOTES_MAX) tiers_of(*space)->hint(at, bytes);
    });
}

void KvPool::bring(std::span<const u32> slots) const {
    std::vector<u64> asked;
    each_missing(*this, slots, ~0ull, [&](const char* at, u64 bytes) { asked.push_back(tiers_of(*space)->ask(Want::prefetch, at, bytes, 0)); });
    std::exception_ptr trouble;
    for (u64 id : asked) {
        try {
            tiers_of(*space)->wait(id, -1);
        } catch (const Error& error) {
            if (error.code != Code::no_room) trouble = std::current_exception();
        }
    }
    if (trouble) std::rethrow_exception(trouble);
}

void KvPool::forget(std::span<const u32> slots) const noexcept {
    TierClient* tiers = tiers_of(*space);
    std::vector<u32> sorted(slots.begin(), slots.end());
    std::sort(sorted.begin(), sorted.end());
    std::vector<u64> asked;
    for (u64 at = 0, count; at < sorted.size(); at += count) {
        count = neighbours(std::span(sorted).subspan(at), ~0u);
        const char *from = block(sorted[at]), *to = from + count * head_->stride;
        u64 unit = tiers->unit_at(from + UNIT - 1);
        for (u64 end = tiers->unit_at(to), next; unit < end; unit = next) {
            next = unit + 1;
            if (tiers->words().tier(unit) != Tier::flash) continue;
            while (next < end && tiers->words().tier(next) == Tier::flash) next++;
            asked.push_back(tiers->ask(Want::discard, tiers->unit(unit), (next - unit) * UNIT, 1 << 20));
        }
    }
    for (u64 id : asked) {
        try {
            tiers->wait(id, -1);
        } catch (const Error&) {}                // then they are read to be written over
    }
}

void KvPool::provide(std::span<const u32> slots) const {
    std::vector<u32> missing;
    for (u32 slot : slots)
        if (auto is = tiers_of(*space)->tiers(block(slot), head_->stride); is.flash || is.empty) missing.push_back(slot);
    std::sort(missing.begin(), missing.end());
    KvHold().take(*this, missing);
}

KvPlaces KvPool::places() const {
    const TierClient* tiers = tiers_of(*space);
    if (!tiers) return {load(head_->live), 0};
    KvPlaces places{};
    for (u32 slot = 0; slot < head_->slots; slot++) {
        if (load(entries_[slot].state, std::memory_order_relaxed) != kv_live) continue;
        (tiers->tiers(block(slot), head_->block_bytes).flash ? places.flash : places.dram)++;
    }
    return places;
}

void KvPool::flush() const {
    check_usable();
    if (!durable())
        throw Error(Code::bad_input, "the space '" + std::string(space->header().name) +
                                         "' is not durable: its KV pool ends with it, and flush() could promise nothing; make it with flash= and durable=True");
    tiers_of(*space)->request(Want::flush, nullptr, 0);
}

}  // namespace osf::kv
