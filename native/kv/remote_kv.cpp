// KV pools of another host.
#include "kv/calls.hpp"

namespace osf::kv {

KvSight kv_seek(Remote& remote, std::string_view pool, KvWhat what, u64 first, u32 keep, std::span<const char> keys) {
    KvSight sight;
    Remote::Ask asked = remote.ask(Call::kv_seek, true);
    asked.out.text(pool).add(KvAsk{first, keys.size() / 32, keep, what, {}});
    asked.parts = keys;
    asked.anew = [&] { sight.places.clear(); };
    asked.page = [&](In in) {
        while (in.more()) sight.places.push_back(in.get<KvPlace>());
    };
    const Remote::Answer answer = remote.call(std::move(asked));
    sight.seen = In(answer.payload).get<KvSeen>();
    const KvSeen& seen = sight.seen;
    const bool value = what >= KvWhat::look_value;
    if (seen.blocks != sight.places.size() || (value ? sight.places.size() > KV_KEYS_MAX : sight.places.size() * 32 > keys.size()) ||
        seen.nbytes > seen.blocks * seen.block_bytes)
        throw Error(Code::refused, "the host " + remote.peer().label() + " tells of other blocks than it counts, or than it was asked for");
    return sight;
}

u32 kv_clear(Remote& remote, std::string_view pool, const std::string* tenant) {
    Remote::Ask asked = remote.ask(Call::kv_clear, true);
    asked.out.text(pool).add(u8(!tenant)).text(tenant ? *tenant : std::string());
    return In(remote.call(std::move(asked)).payload).get<u32>();
}

}  // namespace osf::kv
