#include "serving/engine.hpp"

#include <algorithm>

namespace osf::serving {

void Engine::add(u32 number, Request& request, bool decode_only) {
    u32 at = u32(sequences_.size());
    if (free_sequences_.empty()) {
        sequences_.emplace_back();
    } else {
        at = free_sequences_.back();
        free_sequences_.pop_back();
    }
    sequences_[at] = {number, &request};
    if (decode_only) {
        sequences_[at].prompt = false;
        sequences_[at].planned = request.made;
    }
    load_ += u64(request.input) * !decode_only + request.stop;
    waiting_.push_back(at);
}

bool Engine::take(Sequence& sequence, u64 blocks) {
    if (!cache_.take(blocks)) return false;
    sequence.held += blocks;
    most_blocks = std::max(most_blocks, cache_.used());
    return true;
}

void Engine::release(Sequence& sequence) {
    cache_.give(sequence.held);
    sequence.held = 0;
    while (sequence.shared) cache_.drop(sequence.request->ids[--sequence.shared]);  // the end of a prompt goes first
}

void Engine::preempt(u32 at) {
    Sequence& sequence = sequences_[running_[at]];
    if (rules_.prefixes && !sequence.shared) {   // its whole blocks are its own for as long as nobody needs them
        const u64 whole = std::min<u64>(sequence.held, sequence.computed / rules_.block_tokens);
        cache_.give(sequence.held - whole);
        sequence.held = 0;
        cache_.retain(running_[at], whole);
    }
    release(sequence);
    load_ += sequence.computed;
    sequence.computed = 0;
    sequence.prompt = true;
    sequence.request->preempted++;
    preemptions++;
    waiting_.push_front(running_[at]);
    running_.erase(running_.begin() + at);
}

// One that runs gets its next tokens. False: it was thrown out itself.
bool Engine::schedule(u32 at, u32& budget, Step& step, UnderWay& planned) {
    const u32 which = running_[at];
    Sequence& sequence = sequences_[which];
    const u32 left = target(sequence) - sequence.computed;
    const u32 tokens = std::min(left, budget);
    if (!tokens || sequence.planned >= sequence.request->stop) return true;
    const u64 need = (sequence.computed + tokens + rules_.block_tokens - 1) / rules_.block_tokens, has = sequence.held + sequence.shared * cache_.weight();
    while (need > has && !take(sequence, need - has)) {
        const bool self = running_.size() == at + 1;
        preempt(u32(running_.size()) - 1);
        if (self) return false;
    }
    if (sequence.prompt) {
        times_.add_prefill(step, tokens, sequence.computed);
    } else {
        step.tokens += tokens;
        step.decodes++;
        step.context += sequence.computed + tokens;
    }
    budget -= tokens;
    sequence.computed += tokens;
    load_ -= std::min<u64>(load_, tokens);
    if (tokens == left) {
        sequence.prompt = false;
        sequence.planned++;
        step.sampled++;
        sequence.under_way++;
        planned.sampled.push_back(which);
    }
    return true;
}

void Engine::admit(double now, u32& budget, Step& step, UnderWay& planned) {
    for (auto next = waiting_.begin(); next != waiting_.end() && budget && running_.size() < rules_.most_sequences;) {
        const u32 which = *next;
        Sequence& sequence = sequences_[which];
        Request& request = *sequence.request;
        if (request.ready > now) {               // its KV is on the way: others may go first
            ++next;
            continue;
        }
        u32 shared = 0;
        const u32 all = target(sequence);
        u32 computed = sequence.prompt ? std::min(request.fetched, request.input - 1) : all - 1;
        if (rules_.prefixes && sequence.prompt) {
            shared = cache_.longest(request.ids, std::min(request.blocks_of_ids, (request.input - 1) / id_tokens_));
            computed = std::max(computed, shared * id_tokens_);
        }
        const u64 kept = std::min<u64>(cache_.retained(which), (all - 1) / rules_.block_tokens);
        if (kept) computed = std::max(computed, u32(kept) * rules_.block_tokens);
        const u32 wanted = rules_.whole || !sequence.prompt ? all : std::min(all, computed + budget);
        const u64 need = (wanted + rules_.block_tokens - 1) / rules_.block_tokens;
        const u64 own = need > shared * cache_.weight() ? need - shared * cache_.weight() : 0;
        if (cache_.available() < own + cache_.idle(request.ids, shared)) break;
        for (u32 at = 0; at < shared; at++) cache_.use(request.ids[at]);
        sequence.shared = shared;
        if (cache_.retained(which)) {            // back where they were
            const u64 back = cache_.retained(which);
            cache_.reclaim(which);
            sequence.held = std::min(back, own);
            cache_.give(back - sequence.held);
        }
        if (sequence.prompt && !request.preempted) request.found = shared * id_tokens_;
        load_ -= std::min<u64>(load_, sequence.prompt ? computed : 0);
        sequence.computed = computed;
        take(sequence, own - sequence.held);     // there is room: the next step of it finds its blocks
        next = waiting_.erase(next);
        running_.push_back(which);
        schedule(u32(running_.size()) - 1, budget, step, planned);
    }
}

bool Engine::plan(double now, UnderWay& planned) {
    u32 budget = rules_.most_tokens;
    Step step;
    const u64 before = preemptions;
    const bool prompts = !rules_.mix && std::any_of(waiting_.begin(), waiting_.end(), [&](u32 at) { return sequences_[at].request->ready <= now; });
    if (prompts) admit(now, budget, step, planned);
    if (!prompts || !step.tokens)
        for (u32 at = 0; at < running_.size(); at++)
            if (!schedule(at, budget, step, planned)) break;
    if (!prompts && preemptions == before) admit(now, budget, step, planned);
    if (!step.tokens) return false;
    const double start = std::max(now, last_end_), time = times_.seconds(step);
    last_end_ = planned.end = start + time;
    busy_s += time;
    if (record) record->push_back({start, last_end_, step.tokens, step.decodes});
    steps++;
    computed_tokens += step.tokens;
    return true;
}

// The oldest step has ended.
void Engine::finish(double now, std::vector<u32>& ended, std::vector<u32>& filled) {
    for (u32 which : steps_.front().sampled) {
        Sequence& sequence = sequences_[which];
        Request& request = *sequence.request;
        sequence.under_way--;
        request.made++;
        request.last = now;
        if (request.first < 0) {
            request.first = now;
            filled.push_back(sequence.number);
            if (rules_.prefixes)                 // whole blocks of the prompt are for others, too
                for (u32 ids = std::min(request.blocks_of_ids, request.input / id_tokens_); sequence.shared < ids && sequence.held >= cache_.weight();) {
                    sequence.held -= cache_.weight();
                    cache_.keep(request.ids[sequence.shared++]);
                }
        }
        if (request.made < request.stop || sequence.under_way) continue;
        release(sequence);
        cache_.forget(which);
        if (auto runs = std::find(running_.begin(), running_.end(), which); runs != running_.end()) running_.erase(runs);
        else waiting_.erase(std::find(waiting_.begin(), waiting_.end(), which));  // thrown out while its last token was under way
        free_sequences_.push_back(which);
        ended.push_back(sequence.number);
    }
    steps_.pop_front();
}

double Engine::run(double now, std::vector<u32>& ended, std::vector<u32>& filled) {
    while (!steps_.empty() && steps_.front().end <= now) finish(steps_.front().end, ended, filled);
    while (steps_.size() < rules_.under_way) {
        UnderWay step{0, {}};
        if (!plan(now, step)) break;
        steps_.push_back(std::move(step));
    }
    if (!steps_.empty()) return steps_.front().end;
    double soonest = NEVER;
    for (u32 at : waiting_) soonest = std::min(soonest, sequences_[at].request->ready);
    return soonest > now ? soonest : NEVER;
}

}  // namespace osf::serving
