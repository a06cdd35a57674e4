// One replica of a serving engine, by vLLM's rules: a step has a budget of tokens; sequences that run come first, then those that wait, as
// long as there are KV blocks; who finds none throws out the sequence that came last, which begins anew. A step may be planned while the one
// before it runs (asynchronous scheduling): then two are under way, and what arrives meanwhile is in the one after.
#pragma once

#include <deque>

#include "serving/prefix_cache.hpp"
#include "serving/step_time.hpp"

namespace osf::serving {

struct Rules {
    u32 block_tokens = 16;
    u64 blocks = 0;         // of KV
    u32 most_tokens = 2048, most_sequences = 256;
    u32 under_way = 1;      // steps: 2 with asynchronous scheduling
    bool whole = true;      // a prompt begins only if there are blocks for all of it
    bool mix = true;        // prompts and decodes in one step; else steps of prompts come first
    bool prefixes = false;  // blocks of prompts stay until they are needed
};

struct Request {
    double arrives = 0;
    u32 input = 0, output = 0;
    u32 stop = 0;           // tokens that this engine makes: one where another goes on
    const u32* ids = nullptr;  // of the prompt's whole blocks of the trace
    u32 blocks_of_ids = 0;
    double ready = 0;       // when KV from elsewhere is there
    u32 found = 0, fetched = 0;  // tokens of the prompt: in the engine's own blocks, from elsewhere
    double first = -1, last = -1;
    u32 made = 0;           // tokens that came out
    u32 preempted = 0, replica = 0;
};

class Engine {
public:
    Engine(const Rules& rules, const StepTimes& times, u32 id_tokens) : rules_(rules), times_(times), cache_(rules.blocks, id_tokens / std::max(1u, rules.block_tokens)), id_tokens_(id_tokens) {}

    void add(u32 number, Request& request, bool decode_only);  // decode only: its KV is here at `ready`
    // Goes on from `now`, when it has nothing to wait for. When it wants to go on: never, if there is nothing to do. Numbers of requests that have
    // ended are added to `ended`, and of those whose prompt is done to `filled`.
    double run(double now, std::vector<u32>& ended, std::vector<u32>& filled);
    u64 load() const { return load_; }           // tokens that it has yet to compute
    u32 found(const Request& request) const { return cache_.longest(request.ids, request.blocks_of_ids) * id_tokens_; }
    static constexpr double NEVER = 1e300;

    bool waits() const { return !steps_.empty(); }  // for a step, whatever arrives
    struct Past {
        double start, end;
        u32 tokens, decodes;
    };
    std::vector<Past>* record = nullptr;

    double busy_s = 0;
    u64 steps = 0, computed_tokens = 0, preemptions = 0, most_blocks = 0;

private:
    struct Sequence {
        u32 number;
        Request* request;
        u32 computed = 0, planned = 0;           // tokens with KV, as of the last planned step; tokens that came or are under way
        u64 held = 0;                            // own blocks
        u32 shared = 0;                          // entries of the cache that it uses
        bool prompt = true;                      // has prompt tokens to compute
        u32 under_way = 0;                       // steps
    };
    struct UnderWay {
        double end;
        std::vector<u32> sampled;                // of sequences
    };
    bool plan(double now, UnderWay& step);
    bool schedule(u32 at, u32& budget, Step& step, UnderWay& planned);
    void admit(double now, u32& budget, Step& step, UnderWay& planned);
    bool take(Sequence& sequence, u64 blocks);
    void preempt(u32 at);
    void release(Sequence& sequence);
    void finish(double now, std::vector<u32>& ended, std::vector<u32>& filled);
    u32 target(const Sequence& s) const { return s.request->input + s.planned; }

    Rules rules_;
    const StepTimes& times_;
    PrefixCache cache_;
    u32 id_tokens_;
    u64 load_ = 0;
    std::vector<Sequence> sequences_;
    std::vector<u32> free_sequences_;
    std::deque<u32> waiting_;
    std::vector<u32> running_;
    std::deque<UnderWay> steps_;
    double last_end_ = 0;
};

}  // namespace osf::serving
