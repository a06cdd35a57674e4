// Replicas of engines in virtual time: requests arrive, are routed, fetch KV from a pool, are computed, perhaps in two places, and end. Events are
// in order of time over all replicas, so that a pool sees what a real one would.
#pragma once

#include <memory>

#include "serving/engine.hpp"
#include "serving/virtual_pool.hpp"

namespace osf::serving {

enum class Routing : u32 { in_turn, least_load, by_cache };

struct Cluster {
    Rules rules, decode_rules;
    const StepTimes *times = nullptr, *decode_times = nullptr;
    u32 replicas = 1, decode_replicas = 0;       // with some: the others only compute prompts
    Routing routing = Routing::least_load;
    u32 clients = 0;                             // that wait for an answer before they ask again; 0: requests arrive when they do
    double think_s = 0, entry_s = 0;             // entry: before a request can be in a step, outside of the accelerator
    u32 id_tokens = 512;
    u32 pools = 0;                               // 0: none, 1: one for all, else replicas take turns
    PoolShape pool;
    double fetch_s = 0, fast_s_token = 0, slow_s_token = 0;  // KV from a pool: latency, and seconds a token by tier
    double hand_over_s = 0, hand_over_s_token = 0;           // from prompts to decodes
    bool record = false;
};

struct Requests {           // columns
    std::span<const double> arrives;
    std::span<const u32> input, output;
    std::span<const u64> ids_at;                 // where each one's ids begin; one more at the end
    std::span<const u32> ids;
};

struct ReplicaPast {
    double busy_s;
    u64 steps, tokens, preemptions, most_blocks;
    std::vector<Engine::Past> record;
};

struct Served {
    std::vector<Request> requests;
    std::vector<ReplicaPast> replicas;
    u64 asked = 0, found = 0, found_slow = 0, stored = 0, declined = 0, demoted = 0, evicted = 0, live = 0;
};

Served simulate(const Cluster& cluster, const Requests& given);

// Each request in turn, matched and put: blocks asked for and found from `counted` on, in all tiers and not in the first.
struct Replayed {
    u64 asked = 0, found = 0, slow = 0, stored = 0, evicted = 0, demoted = 0;
};
Replayed replay_pool(const PoolShape& shape, std::span<const u64> ids_at, std::span<const u32> ids, u64 counted, u64 seed);

}  // namespace osf::serving
