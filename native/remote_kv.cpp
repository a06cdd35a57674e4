// KV pools of another host.
#include "remote.hpp"

namespace osf {

KvSight Remote::kv_seek(std::string_view pool, KvWhat what, u64 first, u32 keep, std::span<const char> keys) {
    KvSight sight;
    Ask asked = ask(Call::kv_seek, true);
    asked.out.text(pool).add(KvAsk{first, keys.size() / 32, keep, what, {}});
    asked.parts = keys;
    asked.anew = [&] { sight.places.clear(); };
    asked.page = [&](In in) {
        while (in.more()) sight.places.push_back(in.get<KvPlace>());
    };
    Answer answer = call(std::move(asked));
    sight.seen = In(answer.payload).get<KvSeen>();
    const KvSeen& seen = sight.seen;
    const bool value = what >= KvWhat::look_value;
    if (seen.blocks != sight.places.size() || (value ? sight.places.size() > KV_KEYS_MAX : sight.places.size() * 32 > keys.size()) ||
        seen.nbytes > seen.blocks * seen.block_bytes)
        throw Error(Code::refused, "the host " + peer_.label() + " tells of other blocks than it counts, or than it was asked for");
    return sight;
}

u32 Remote::kv_clear(std::string_view pool, const std::string* tenant) {
    Ask asked = ask(Call::kv_clear, true);
    asked.out.text(pool).add(u8(!tenant)).text(tenant ? *tenant : std::string());
    return In(call(std::move(asked)).payload).get<u32>();
}

}  // namespace osf
