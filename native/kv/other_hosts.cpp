#include "kv/other_hosts.hpp"

#include <algorithm>

namespace osf::kv {

namespace {

constexpr u64 GROUP = 32 * MIB;                  // of one transfer

struct Blocks {                                  // of a draft's reserved slots
    u64 from, count;
};

// What one transfer brings, in this order.
struct Parcel {
    std::vector<Range> ranges;
    std::vector<char*> places;
    std::vector<u32> tokens;
    KvEntry last{};
    u64 id = 0;
    void add(u64 address, u64 bytes, void* to) {
        ranges.push_back({address, bytes});
        places.push_back(static_cast<char*>(to));
    }
};

}  // namespace

static KvKey key_there(const KvDraft& draft, const KvSeen& seen, u64 block) {
    if (!draft.is_value()) return draft.key(block);
    KvKey key = draft.key(0);                    // the others' are of the nonce that the value has there
    for (u64 at = 0; at < block; at++) key = kv_next_key(key, seen.nonce);
    return key;
}

static bool fetch_some(KvDraft& draft, Remote& remote, const KvSight& sight, u64 first, Blocks some) {
    const KvSeen& seen = sight.seen;
    const u64 size = draft.pool->head().block_tokens, block = draft.next() + some.from;  // the first of these, of the prompt
    Parcel parcel;
    parcel.tokens.resize(draft.is_value() ? 0 : some.count * size);
    for (u64 at = 0; at < some.count; at++) {
        const u64 there = sight.places[block - first + at].slot, before = (block + at) * seen.block_bytes;
        const u64 bytes = draft.is_value() ? std::min(seen.block_bytes, seen.nbytes - std::min(seen.nbytes, before)) : seen.block_bytes;
        if (bytes) parcel.add(seen.data + there * seen.stride, bytes, draft.pool->block(draft.slots()[some.from + at]));
        if (!draft.is_value()) parcel.add(seen.tokens + there * size * 4, size * 4, parcel.tokens.data() + at * size);
    }
    const u64 last = block + some.count - 1;
    const KvPlace& place = sight.places[last - first];
    parcel.add(seen.entries + place.slot * sizeof(KvEntry), sizeof(KvEntry), &parcel.last);
    parcel.add(seen.pool + offsetof(KvHead, id), sizeof parcel.id, &parcel.id);
    auto transfer = remote.get(std::move(parcel.ranges), std::move(parcel.places));
    remote.wait(*transfer, -1, {});              // not to be interrupted: it writes into the slots
    const KvKey key = key_there(draft, seen, last);
    return parcel.id == seen.id && parcel.last.state == kv_live && parcel.last.life == place.life && std::equal(key.words, key.words + 4, parcel.last.key) &&
           std::equal(parcel.tokens.begin(), parcel.tokens.end(), draft.is_value() ? nullptr : draft.tokens(block));
}

// Blocks that expire together, as many as are fetched at once.
static u64 next_group(const KvDraft& draft, const KvSight& sight, u64 first, u64 end, u64 most) {
    if (draft.is_value()) return draft.blocks();
    u64 count = 1;
    const KvPlace* place = &sight.places[draft.next() - first];
    while (count < most && draft.next() + count < end && place[count].expires_ns == place->expires_ns) count++;
    return count;
}

u64 kv_fetch(KvDraft& draft, Remote& remote, const KvSight& sight, u64 first, const Interrupted& interrupted) {
    const KvHead& head = draft.pool->head();
    const KvSeen& seen = sight.seen;
    const u64 start = draft.next(), end = std::min(draft.blocks(), first + sight.places.size());
    if (seen.block_bytes != head.block_bytes || seen.block_tokens != head.block_tokens || start < first || (draft.is_value() && end < draft.blocks()))
        return 0;                                // another layout by the same name
    const u64 most = std::clamp<u64>(GROUP / head.stride, 1, RANGES_MAX / 2 - 2);
    bool good = true;
    while (good && draft.next() < end && !interrupted()) {
        const u64 wanted = next_group(draft, sight, first, end, most);
        draft.expire_at(sight.places[draft.next() - first].expires_ns);
        draft.reserve(wanted);
        good = draft.reserved() && (draft.reserved() == wanted || !draft.is_value());
        for (u64 done = 0; good && done < draft.reserved(); done += most)
            good = !interrupted() && fetch_some(draft, remote, sight, first, {done, std::min(most, draft.reserved() - done)});
        if (good) draft.publish();
        else draft.abandon();
    }
    draft.pool->count_fetched(draft.next() - start);
    return draft.next() - start;
}

}  // namespace osf::kv
