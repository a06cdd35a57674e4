#include "kv/hit.hpp"

#include <algorithm>

#include "tiers/client.hpp"

namespace osf::kv {

constexpr u64 AHEAD = 64;  // blocks that are hashed before looking whether the last of them is there

static u64 extend(KvPool& pool, const KvKey& root, std::span<const u32> tokens, std::vector<KvKey>& keys) {
    const u32 size = pool.head().block_tokens;
    const u64 blocks = tokens.size() / size;
    KvChain chain(root, size);
    u64 present = 0;
    while (present < blocks) {
        u64 end = std::min(blocks, present + AHEAD);
        while (keys.size() < end) keys.push_back(chain.next(tokens.data() + keys.size() * size));
        if (pool.find(keys[end - 1]) == NO_SLOT) return pool.longest({keys.data(), end - 1}, present);
        present = end;
    }
    return present;
}

KvHit::KvHit(std::shared_ptr<KvPool> in, const KvKey& root, std::span<const u32> tokens, bool verify)
    : pool(std::move(in)), pin_(*pool) {
    pool->check_usable();
    const u32 size = pool->head().block_tokens;
    std::vector<KvKey> keys;
    keys.reserve(std::min<u64>(tokens.size() / size, 8192));
    u64 present = extend(*pool, root, tokens, keys);
    if (hold_last(keys, present)) {
        u64 good = unexpired();
        for (u64 at = 0; verify && at < good; at++)
            if (std::memcmp(pool->tokens(slots[at]), tokens.data() + at * size, 4 * size)) good = at;
        cut(good);
    }
}

KvHit::KvHit(std::shared_ptr<KvPool> in, std::span<const KvKey> keys, u64 first) : pool(std::move(in)), pin_(*pool) {
    pool->check_usable();
    if (hold_last(keys, pool->longest(keys, 0), first)) cut(unexpired());
}

KvHit::KvHit(std::shared_ptr<KvPool> in, const KvKey& name_key) : pool(std::move(in)), pin_(*pool) {
    pool->check_usable();
    std::vector<KvKey> keys{name_key};
    bool whole = hold_last(keys, 1);
    if (whole) {
        nbytes = pool->entry(slots[0]).nbytes;
        nonce = pool->entry(slots[0]).nonce;
        u64 blocks = std::max<u64>(1, div_up(nbytes, pool->head().block_bytes));
        if (nbytes > u64(pool->head().slots) * pool->head().block_bytes) throw Error(Code::corrupt, "a KV pool's value is larger than the pool; delete the pool");
        while (keys.size() < blocks) keys.push_back(kv_next_key(keys.back(), nonce));
        whole = (blocks == 1 || (hold_last(keys, blocks) && slots.size() == blocks)) && unexpired();
    }
    if (!whole) drop();
}

u64 KvHit::unexpired() const {
    const u64 now = wall_ns();
    u64 good = 0;
    for (; good < slots.size(); good++)
        if (u64 expires = load(pool->entry(slots[good]).expires_ns, std::memory_order_relaxed); expires && expires <= now) break;
    return good;
}

void KvHit::prefetch() {
    if (pool->plain()) cut(hold_.take(*pool, slots));
    else pool->prefetch(slots);
}

// Before block `at` of these is copied: a few at a time are waited for, while more are on their way. Nothing to do where all are in memory.
static void look_ahead(const KvPool& pool, std::span<const u32> slots, u64 at) {
    const u64 group = pool.group(), few = std::max<u64>(1, group / 8);
    if (at % group == 0) pool.prefetch(slots.subspan(at, std::min<u64>(2 * group, slots.size() - at)));
    if (at % few == 0) pool.bring(slots.subspan(at, std::min<u64>(few, slots.size() - at)));
}

void KvHit::count(u64 queried) { pool->count_match(slots, queried); }

// From the last that seems to be there down to one that can be held; then all before it are held too, and its parents say where they are.
bool KvHit::hold_last(std::span<const KvKey> keys, u64 present, u64 first) {
    while (present) {
        u32 last = pool->find(keys[present - 1]);
        if (last != NO_SLOT && pin_.hold(last, keys[present - 1])) {
            walk_back(present, last, first);
            return true;
        }
        present = pool->longest(keys.first(present - 1), 0);
    }
    drop();
    return false;
}

void KvHit::walk_back(u64 blocks, u32 last, u64 first) {
    if (load(pool->entry(last).position) + 1 != first + blocks) throw Error(Code::bad_input, "a KV pool's block has another place in its prompt");
    slots.resize(blocks);
    u32 slot = last;
    for (u64 at = blocks; at-- > 0;) {
        slots[at] = slot;
        u32 parent = load(pool->entry(slot).parent, std::memory_order_relaxed);
        if ((first + at == 0) != (parent == 0) || (at && !parent) || parent > pool->head().slots)
            throw Error(Code::corrupt, "a KV pool's blocks do not hang together; delete the pool");
        slot = parent - 1;
    }
}

void KvHit::cut(u64 blocks) {
    if (blocks == slots.size()) return;
    slots.resize(blocks);
    if (blocks) pin_.move(slots.back());
    else drop();
}

void KvHit::drop() {
    slots.clear();
    nbytes = nonce = 0;
    pin_.clear();
}

void KvHit::stick(bool on) const {
    if (on && !slots.empty()) pool->stick(slots.back(), true);
    for (u32 slot : slots)
        if (!on && load(pool->entry(slot).flags) & kv_sticky) pool->stick(slot, false);
}

u32 kv_evict(KvHit hit, u32 keep) {
    if (hit.slots.empty()) return 0;
    auto pool = hit.pool;
    const u32 last = hit.slots.back();
    KvKey key;
    std::memcpy(&key, pool->entry(last).key, sizeof key);
    { KvHit gone(std::move(hit)); }              // our own pin would keep it
    return pool->evict(last, key, keep);
}

void KvHit::read(u64 block, u64 count, const KvPieces& into) const {
    const u64 pieces = into.addresses.size();
    if (block + count > slots.size() || block + count < block || (into.first + pieces) * into.bytes > pool->head().block_bytes ||
        (!into.table.empty() && into.table.size() < count))
        throw Error(Code::bad_input, "blocks " + std::to_string(block) + " to " + std::to_string(block + count) + " of a match of " + std::to_string(slots.size()) + " cannot be read like that");
    const bool past = count * pieces * into.bytes >= KV_PAST_CACHES;
    const bool tiered = tiers_of(*pool->space) && !pool->plain();
    for (u64 at = 0; at < count; at++) {
        if (tiered) look_ahead(*pool, std::span(slots).subspan(block, count), at);
        const char* from = pool->block(slots[block + at]) + into.first * into.bytes;
        for (u64 piece = 0; piece < pieces; piece++)
            kv_copy(into.at(piece, at), from + piece * into.bytes, into.bytes, past);
    }
    if (past) kv_copied();
}

void KvHit::read_value(char* into) const {
    const u64 size = pool->head().block_bytes;
    const bool past = nbytes >= KV_PAST_CACHES;
    TierClient* tiers = tiers_of(*pool->space);
    for (u64 at = 0; at < slots.size() && at * size < nbytes; at++) {
        char *to = into + at * size, *from = pool->block(slots[at]);
        const u64 bytes = std::min(size, nbytes - at * size);
        auto copy = [&](const char* part, u64 some) { kv_copy(to + (part - from), part, some, past); };
        if (tiers && !tiers->plain()) look_ahead(*pool, slots, at);
        if (tiers) tiers->within(from, bytes, copy);
        else copy(from, bytes);
    }
    if (past) kv_copied();
}

}  // namespace osf::kv
