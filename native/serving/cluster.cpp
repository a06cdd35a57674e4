#include "serving/cluster.hpp"

#include <algorithm>
#include <queue>

namespace osf::serving {

namespace {

struct Event {
    double time;
    u64 order;
    u32 replica, request;                        // a request arrives at a replica, or anywhere; or a replica goes on
    bool operator>(const Event& other) const { return time != other.time ? time > other.time : order > other.order; }
};

class Simulation {
public:
    Simulation(const Cluster& cluster, const Requests& given) : cluster_(cluster) {
        const u64 count = given.arrives.size();
        served_.requests.resize(count);
        for (u64 at = 0; at < count; at++) {
            Request& request = served_.requests[at];
            request.arrives = given.arrives[at];
            request.input = std::max(1u, given.input[at]);
            request.output = std::max(1u, given.output[at]);
            request.ids = given.ids.data() + given.ids_at[at];
            request.blocks_of_ids = u32(given.ids_at[at + 1] - given.ids_at[at]);
        }
        const u32 all = cluster.replicas + cluster.decode_replicas;
        records_.resize(all);
        for (u32 at = 0; at < all; at++) {
            const bool decodes = at >= cluster.replicas;
            engines_.emplace_back(decodes ? cluster.decode_rules : cluster.rules, decodes ? *cluster.decode_times : *cluster.times, cluster.id_tokens);
            if (cluster.record) engines_.back().record = &records_[at];
        }
        wake_.assign(all, Engine::NEVER);
        link_free_.assign(all, 0);
        for (u32 at = 0; at < cluster.pools; at++) pools_.push_back(std::make_unique<VirtualPool>(cluster.pool, at + 1));
        const u64 first = cluster.clients ? std::min<u64>(cluster.clients, count) : count;
        for (; next_ < first; next_++) add(served_.requests[next_].arrives, ANY, u32(next_));
    }

    Served run() {
        while (!events_.empty()) {
            const Event event = events_.top();
            events_.pop();
            if (event.request != ANY) {
                arrive(event);
            } else if (wake_[event.replica] == event.time) {
                go_on(event.replica, event.time);
            }
        }
        for (u32 at = 0; at < engines_.size(); at++) {
            const Engine& engine = engines_[at];
            served_.replicas.push_back({engine.busy_s, engine.steps, engine.computed_tokens, engine.preemptions, engine.most_blocks, std::move(records_[at])});
        }
        for (auto& pool : pools_) {
            served_.asked += pool->asked, served_.found += pool->found, served_.found_slow += pool->found_slow, served_.stored += pool->stored;
            served_.declined += pool->declined, served_.demoted += pool->demoted, served_.evicted += pool->evicted(), served_.live += pool->live();
        }
        return std::move(served_);
    }

private:
    static constexpr u32 ANY = ~0u;

    void add(double time, u32 replica, u32 request) { events_.push({time, order_++, replica, request}); }

    u32 route(const Request& request) {
        const u32 count = cluster_.replicas;
        if (cluster_.routing == Routing::in_turn || count == 1) return turn_++ % count;
        u32 best = 0;
        u64 least = ~0ull;
        for (u32 step = 0; step < count; step++) {
            const u32 at = (turn_ + step) % count;
            u64 cost = engines_[at].load();
            if (cluster_.routing == Routing::by_cache) cost += request.input - std::min(request.input, engines_[at].found(request));
            if (cost < least) least = cost, best = at;
        }
        turn_++;
        return best;
    }

    u32 least_loaded_decoder() const {
        u32 best = cluster_.replicas;
        for (u32 at = best; at < engines_.size(); at++)
            if (engines_[at].load() < engines_[best].load()) best = at;
        return best;
    }

    VirtualPool* pool_of(u32 replica) { return pools_.empty() ? nullptr : pools_[replica % pools_.size()].get(); }

    // What the pool has and the replica has not comes over the replica's link, one request after the other.
    void fetch(Request& request, u32 replica, double now) {
        VirtualPool* pool = pool_of(replica);
        if (!pool || !request.blocks_of_ids) return;
        const auto found = pool->match({request.ids, request.blocks_of_ids});
        const u32 tokens = std::min(found.blocks * cluster_.id_tokens, request.input), own = std::min(tokens, engines_[replica].found(request));
        if (tokens <= own) return;
        const u32 slow = std::min(found.slow * cluster_.id_tokens, tokens - own), fast = tokens - own - slow;
        const double start = std::max(now, link_free_[replica]);
        link_free_[replica] = start + fast * cluster_.fast_s_token + slow * cluster_.slow_s_token;
        request.ready = std::max(request.ready, link_free_[replica] + cluster_.fetch_s);
        request.fetched = tokens;
    }

    void arrive(const Event& event) {
        Request& request = served_.requests[event.request];
        u32 replica = event.replica;
        const bool decode_only = replica != ANY;
        if (!decode_only) {
            replica = request.replica = route(request);
            request.arrives = event.time;
            request.stop = cluster_.decode_replicas ? 1 : request.output;
            request.ready = event.time + cluster_.entry_s;
            fetch(request, replica, event.time);
        }
        engines_[replica].add(event.request, request, decode_only);
        if (engines_[replica].waits() || wake_[replica] == event.time) return;
        wake_[replica] = event.time;             // after all that arrive now
        add(event.time, replica, ANY);
    }

    void go_on(u32 replica, double now) {
        ended_.clear();
        filled_.clear();
        const double next = engines_[replica].run(now, ended_, filled_);
        wake_[replica] = next;
        if (next < Engine::NEVER) add(next, replica, ANY);
        for (u32 number : filled_) {
            const Request& request = served_.requests[number];
            if (VirtualPool* pool = pool_of(replica); pool && request.blocks_of_ids) pool->put({request.ids, request.blocks_of_ids});
        }
        for (u32 number : ended_) {
            Request& request = served_.requests[number];
            if (request.made < request.output) {  // elsewhere it goes on
                request.stop = request.output;
                request.ready = now + cluster_.hand_over_s + request.input * cluster_.hand_over_s_token;
                add(request.ready, least_loaded_decoder(), number);
                continue;
            }
            if (cluster_.clients && next_ < served_.requests.size()) add(request.last + cluster_.think_s, ANY, u32(next_++));
        }
    }

    const Cluster& cluster_;
    Served served_;
    std::vector<Engine> engines_;
    std::vector<std::vector<Engine::Past>> records_;
    std::vector<double> wake_, link_free_;
    std::vector<std::unique_ptr<VirtualPool>> pools_;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::vector<u32> ended_, filled_;
    u64 next_ = 0, order_ = 0;
    u32 turn_ = 0;
};

}  // namespace

Served simulate(const Cluster& cluster, const Requests& given) { return Simulation(cluster, given).run(); }

Replayed replay_pool(const PoolShape& shape, std::span<const u64> ids_at, std::span<const u32> ids, u64 counted, u64 seed) {
    VirtualPool pool(shape, seed);
    u64 asked = 0, found = 0, slow = 0;
    for (u64 at = 0; at + 1 < ids_at.size(); at++) {
        if (at == counted) asked = pool.asked, found = pool.found, slow = pool.found_slow;
        const auto some = ids.subspan(ids_at[at], ids_at[at + 1] - ids_at[at]);
        pool.match(some);
        pool.put(some);
    }
    return {pool.asked - asked, pool.found - found, pool.found_slow - slow, pool.stored, pool.evicted(), pool.demoted};
}

}  // namespace osf::serving
