#include "kv_homes.hpp"

#include <algorithm>

namespace osf {

namespace {

// One group on its way: the reserved slots of a draft, filled by one transfer.
struct Group {
    std::vector<Range> ranges;
    std::vector<char*> places;
    std::vector<u32> tokens;
    KvEntry last{};
    void add(u64 address, u64 bytes, void* to) {
        ranges.push_back({address, bytes});
        places.push_back(static_cast<char*>(to));
    }
};

}  // namespace

static KvKey last_key(const KvDraft& draft, const KvSeen& seen, u64 last) {
    if (!draft.is_value()) return draft.key(last);
    KvKey key = draft.key(0);                    // the others' are of the nonce that the value has there
    for (u64 at = 0; at < last; at++) key = kv_next_key(key, seen.nonce);
    return key;
}

static bool fetch_group(KvDraft& draft, Remote& remote, const KvSight& sight, u64 first) {
    const KvSeen& seen = sight.seen;
    const u64 size = draft.pool->head().block_tokens, from = draft.next() - first;
    std::span<const u32> slots = draft.slots();
    Group group;
    group.tokens.resize(draft.is_value() ? 0 : slots.size() * size);
    for (u64 at = 0; at < slots.size(); at++) {
        const u64 there = sight.places[from + at].slot, before = (from + at) * seen.block_bytes;
        const u64 bytes = draft.is_value() ? std::min(seen.block_bytes, seen.nbytes - std::min(seen.nbytes, before)) : seen.block_bytes;
        if (bytes) group.add(seen.data + there * seen.stride, bytes, draft.pool->block(slots[at]));
        if (!draft.is_value()) group.add(seen.tokens + there * size * 4, size * 4, group.tokens.data() + at * size);
    }
    const u64 last = from + slots.size() - 1;
    group.add(seen.entries + sight.places[last].slot * sizeof(KvEntry), sizeof(KvEntry), &group.last);
    auto transfer = remote.get(std::move(group.ranges), std::move(group.places));
    remote.wait(*transfer, -1, {});              // not to be interrupted: it writes into the slots
    const KvKey key = last_key(draft, seen, last + first);
    const bool same = group.last.state == kv_live && group.last.life == sight.places[last].life && std::equal(key.words, key.words + 4, group.last.key);
    return same && std::equal(group.tokens.begin(), group.tokens.end(), draft.tokens(draft.next()));
}

u64 kv_fetch(KvDraft& draft, Remote& remote, const KvSight& sight, u64 first, const Interrupted& interrupted) {
    constexpr u64 GROUP = 32 * MIB;
    const KvHead& head = draft.pool->head();
    const KvSeen& seen = sight.seen;
    const u64 start = draft.next(), end = std::min(draft.blocks(), first + sight.places.size());
    if (seen.block_bytes != head.block_bytes || seen.block_tokens != head.block_tokens || start < first || (draft.is_value() && end < draft.blocks()))
        return 0;                                // another layout by the same name
    const u64 most = draft.is_value() ? draft.blocks() : std::clamp<u64>(GROUP / head.stride, 1, RANGES_MAX / 2 - 1);
    draft.expire_at(seen.expires_ns);
    while (draft.next() < end && !interrupted()) {
        draft.reserve(std::min(most, end - draft.next()));
        if (!draft.reserved() || (draft.is_value() && draft.reserved() < draft.blocks()) || !fetch_group(draft, remote, sight, first)) {
            draft.abandon();
            break;
        }
        draft.publish();
    }
    draft.pool->count_fetched(draft.next() - start);
    return draft.next() - start;
}

}  // namespace osf
