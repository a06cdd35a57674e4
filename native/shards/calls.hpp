// What a process asks of another host's shard (rpc/calls.hpp has the bytes).
#pragma once

#include <functional>

#include "rpc/remote.hpp"
#include "shards/shard.hpp"

namespace osf::shards {

struct ShardLook {
    ShardSeen seen{};
    std::vector<u32> places, reads;
};

void shard_make(Remote& remote, const ShardSpec& spec, std::span<const u32> blocks);
std::optional<ShardLook> shard_look(Remote& remote, u64 id);  // nothing: it has no shard of this table
// A row after the other, as Shard::copy_rows has them, in the order of the ids.
using TakeRow = std::function<void(u64 at, const char* row)>;
void shard_rows(Remote& remote, u64 id, std::span<const u64> ids, bool states, u64 stride, const TakeRow& take);
bool shard_bags(Remote& remote, u64 id, std::span<const u64> ids, std::span<const u32> ends, const float* weights, std::span<float> out);
std::vector<u32> shard_change(Remote& remote, u64 id, const ChangeAsked& asked, std::span<const u64> ids, std::span<const char> given, std::span<const char> states);
std::vector<u64> shard_versions(Remote& remote, u64 id, ShardSeen& seen);
void shard_block(Remote& remote, u64 id, BlockVerb verb, u32 block, u64 number);
void shard_discard(Remote& remote, u64 id);

void register_shards();                          // once in a process that serves spaces

}  // namespace osf::shards
