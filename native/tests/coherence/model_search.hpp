// Every reachable world, breadth first. Worlds are stored as they are (no hashes that could collide), with their
// predecessor, so that a violation comes with a shortest path to it.
#pragma once

#include <algorithm>
#include <cstdio>

#include "tests/coherence/model_events.hpp"

namespace osf::model {

struct Report {
    std::string violation;  // empty: none
    std::vector<std::string> path;
    size_t worlds = 0, events = 0, hosts = 0, wires = 0, depth = 0;
    u32 received = 0;  // which kinds of messages
    bool complete = false;
};

class Search {
public:
    Search(const Shape& shape, const Bounds& bounds, Fault fault = Fault::none)
        : bounds_(bounds), alike_(shape.units == 1 || shape.home[1] == 0), universe_(shape, fault), events_(universe_, bounds) {}

    Report run() {
        for (u32 h = 0; h < HOSTS; h++) first_.host[h] = universe_.born(h);
        Report report;
        try {
            meet();
            first_.set_faults(bounds_.faults), first_.set_suspensions(bounds_.suspensions);
            first_.set_touches(bounds_.touches), first_.set_evictions(bounds_.evictions);
            first_ = canonical(first_);
            find(first_, hash_bytes(&first_, sizeof first_, 1), 0);
            explore(report);
            find_endless(report);
        } catch (const Violation& violation) {
            report.violation = violation.what;
        }
        report.worlds = worlds_, report.received = universe_.received;
        report.hosts = universe_.hosts.size(), report.wires = universe_.wires.size();
        return report;
    }

private:
    struct Node { World world; u32 parent, calm; };
    struct Next { Event event; World world; u64 hash; };
    static constexpr u32 CHUNK = 1 << 16, NOWHERE = ~0u;
    static constexpr u64 EMPTY = ~0ull;

    Node& node(u32 number) { return chunks_[number / CHUNK][number % CHUNK]; }

    void meet() {  // all are connected when it begins; what can happen meanwhile, can also when they meet again
        for (EventKind kind : {e_connected, e_deliver})
            for (u32 a = 0; a < HOSTS; a++)
                for (u32 b = 0; b < HOSTS; b++)
                    if (a != b) first_ = events_.apply(first_, {kind, u8(a), u8(b)});  // of each to each, one HELD_END
    }

    void explore(Report& report) {
        u32 level_ends = 1;
        for (u32 at = 0; at < worlds_ && worlds_ < bounds_.worlds; at++, expanded_ = at) {
            if (at == level_ends) report.depth++, level_ends = u32(worlds_);
            const World world = node(at).world;
            u32 calm = NOWHERE, calm_rank = NOWHERE;
            next_.clear();
            try {
                events_.each(world, [&](const Event& event, const World& after) {
                    World same = canonical(after);
                    u64 hash = hash_bytes(&same, sizeof same, 1);
                    __builtin_prefetch(&table_[hash & (table_.size() - 1)]);
                    next_.push_back({event, same, hash});
                });
                for (const Next& next : next_) {
                    size_t known = worlds_;
                    u32 number = find(next.world, next.hash, at);
                    if (number == known) events_.check(next.world);
                    if (next.event.killed_after == ALL_CALLS && next.event.kind < calm_rank && settles(world, next.event))
                        calm = number, calm_rank = next.event.kind;
                }
            } catch (Violation& violation) {
                report.path = path_to(at, violation);
                throw;
            }
            report.events += next_.size();
            node(at).calm = calm;
        }
        report.complete = expanded_ == worlds_;
    }

    // Left alone, healed and with its messages delivered, every world comes to rest.
    void find_endless(Report& report) {
        std::vector<u8> colour(worlds_);
        for (u32 at = 0; at < expanded_; at++) {
            u32 i = at;
            while (i < expanded_ && !colour[i] && node(i).calm != NOWHERE) colour[i] = 1, i = node(i).calm;
            if (i < expanded_ && colour[i] == 1) {
                Violation violation{"messages go round for ever"};
                report.path = path_to(at, violation);
                throw violation;
            }
            for (u32 j = at; j < expanded_ && colour[j] == 1; j = node(j).calm) colour[j] = 2;
        }
    }
    bool settles(const World& world, const Event& event) const {  // a lost host is declared so where it has to be
        return calms(event.kind) && (event.kind != e_lost || universe_.facts(world.host[event.peer]).life == dead);
    }

    World canonical(const World& w) {
        if (!alike_) return w;
        static constexpr u32 to[HOSTS] = {0, 2, 1};
        World other = w;
        for (u32 a = 0; a < HOSTS; a++) {
            other.host[to[a]] = universe_.swapped(w.host[a], to);
            for (u32 b = 0; b < HOSTS; b++) {
                if (a == b) continue;
                other.wire[wire_of(to[a], to[b])] = w.wire[wire_of(a, b)];
                other.set_linked(to[a], to[b], w.linked(a, b));
                other.set_parting(to[a], to[b], w.parting(a, b));
                other.set_gave_up(to[a], to[b], w.gave_up(a, b));
            }
        }
        return std::min(w, other);
    }

    u32 find(const World& w, u64 hash, u32 parent) {
        if (worlds_ * 3 >= table_.size() * 2) grow();
        size_t i = hash & (table_.size() - 1);
        for (; table_[i] != EMPTY; i = (i + 1) & (table_.size() - 1))
            if (table_[i] >> 32 == hash >> 32 && node(u32(table_[i])).world == w) return u32(table_[i]);
        if (worlds_ % CHUNK == 0) chunks_.push_back(std::make_unique<Node[]>(CHUNK));
        node(u32(worlds_)) = {w, parent, NOWHERE};
        table_[i] = hash >> 32 << 32 | worlds_;
        return u32(worlds_++);
    }
    void grow() {
        std::vector<u64>(table_.size() * 2, EMPTY).swap(table_);
        for (u32 number = 0; number < worlds_; number++) {
            u64 hash = hash_bytes(&node(number).world, sizeof(World), 1);
            size_t i = hash & (table_.size() - 1);
            while (table_[i] != EMPTY) i = (i + 1) & (table_.size() - 1);
            table_[i] = hash >> 32 << 32 | number;
        }
    }

    // The events from the first world to this one, and one more if it violates something: then that is told.
    std::vector<std::string> path_to(u32 number, Violation& violation) {
        std::vector<u32> chain;
        for (u32 at = number; at; at = node(at).parent) chain.push_back(at);
        std::vector<std::string> path;
        World real = first_;
        for (auto next = chain.rbegin(); next != chain.rend(); next++) {
            World wanted = node(*next).world, found = real;
            bool is_found = false;
            std::string name;
            try {
                events_.each(real, [&](const Event& event, const World& after) {
                    if (is_found || canonical(after) != wanted) return;
                    is_found = true, found = after, name = name_of(event, universe_, real);
                });
            } catch (const Violation&) {
            }
            real = found;
            path.push_back(name);
        }
        try {
            events_.each(real, [&](const Event&, const World& after) { events_.check(after); });
        } catch (const Violation& first) {
            violation = first;
            path.push_back(name_of(events_.last, universe_, real));
        }
        return path;
    }

    const Bounds bounds_;
    const bool alike_;  // hosts 1 and 2 can be swapped: neither is a home
    Universe universe_;
    Events events_;
    World first_{};
    std::vector<std::unique_ptr<Node[]>> chunks_;
    std::vector<u64> table_ = std::vector<u64>(1 << 16, EMPTY);  // upper half of the hash, number of the world
    std::vector<Next> next_;
    size_t worlds_ = 0;
    u32 expanded_ = 0;
};

}  // namespace osf::model
