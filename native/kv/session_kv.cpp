// Calls about this host's KV pools. A pool is opened for each call: one that is kept would keep the memory of a pool that is deleted.
#include "kv/calls.hpp"
#include "kv/hit.hpp"
#include "rpc/session.hpp"

namespace osf::kv {

static KvSeen describe(const KvPool& pool, const KvHit& hit) {
    const KvHead& head = pool.head();
    return {u64(&head), head.id, hit.slots.size(), u64(pool.data()), head.stride, u64(pool.tokens(0)), u64(&pool.entry(0)), head.block_bytes,
            hit.nbytes, hit.nonce, head.block_tokens, 0};
}

static void seek(Session& session, In& in) {
    std::string_view name = in.text();
    const KvAsk ask = in.get<KvAsk>();
    in.end();
    const std::vector<KvKey> keys = session.receive_all<KvKey>(ask.keys, KV_KEYS_MAX);
    const bool value = ask.what >= KvWhat::look_value;
    if (ask.what > KvWhat::evict_value || keys.empty() || (value && keys.size() != 1)) throw Error(Code::bad_input, "a look-up of no known kind");
    auto pool = KvPool::open(session.space(), name);
    KvSeen seen{};
    std::vector<KvPlace> places;
    if (pool) {
        if (ask.first > pool->head().slots) throw Error(Code::bad_input, "no prompt has so many blocks before these");
        KvHit hit = value ? KvHit(pool, keys[0]) : KvHit(pool, keys, ask.first);
        seen = describe(*pool, hit);
        for (u32 slot : hit.slots) places.push_back({slot, load(pool->entry(slot).life), load(pool->entry(slot).expires_ns)});
        if (ask.what == KvWhat::use || ask.what == KvWhat::use_value) hit.count(value ? 1 : ask.keys);
        if (ask.what == KvWhat::evict || ask.what == KvWhat::evict_value) seen.gone = kv_evict(std::move(hit), ask.keep);
    }
    session.send_parts({reinterpret_cast<const char*>(places.data()), places.size() * sizeof(KvPlace)});
    session.reply(Out().add(seen));
}

static void clear(Session& session, In& in) {
    std::string_view name = in.text();
    const bool all = in.get<u8>();
    std::string_view tenant = in.text();
    in.end();
    auto pool = KvPool::open(session.space(), name);
    session.reply(Out().add(pool ? pool->clear(all ? nullptr : &tenant) : u32(0)));
}

void register_kv() {
    answer_with(Call::kv_seek, seek);
    answer_with(Call::kv_clear, clear);
    set_movable_from(kind_pool, kv_blocks_at);
}

}  // namespace osf::kv
