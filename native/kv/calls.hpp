// What a KV pool asks of the same pool on another host: two calls, which the server knows by registration (rpc/serve.hpp).
#pragma once

#include "rpc/remote.hpp"

namespace osf::kv {

// A plain value has one key, of its name.
enum class KvWhat : u8 { look, use, evict, look_value, use_value, evict_value };
constexpr u64 KV_KEYS_MAX = 1 << 20;           // of one call

struct KvAsk {
    u64 first, keys;                           // the keys are those of the blocks from `first` on
    u32 keep;                                  // evict: not the first so many blocks
    KvWhat what;
    u8 pad[3];
};

struct KvSeen {                                // addresses are of the home's pool, and of its blocks, tokens and entries, slot 0
    u64 pool, id, blocks, data, stride, tokens, entries;
    u64 block_bytes, nbytes, nonce;            // nbytes, nonce: of a plain value
    u32 block_tokens, gone;                    // gone: blocks that were evicted
};

struct KvPlace {
    u32 slot, life;
    u64 expires_ns;
};

struct KvSight {                               // what another host's KV pool has of a prompt
    KvSeen seen{};
    std::vector<KvPlace> places;               // of the blocks, in order
};

KvSight kv_seek(Remote& remote, std::string_view pool, KvWhat what, u64 first, u32 keep, std::span<const char> keys);  // 32 bytes each
u32 kv_clear(Remote& remote, std::string_view pool, const std::string* tenant);  // null: of all

// Once in a process that serves spaces or keeps their flash tier: the server learns these calls, and the tier which part of a pool may leave memory.
void register_kv();

}  // namespace osf::kv
