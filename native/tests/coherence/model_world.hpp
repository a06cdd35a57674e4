// Three hosts and the wires between them. Every host and every wire content is stored once and known by a number, so a
// world is eleven numbers, and what an action does to a host is computed by the protocol's code once and then looked up.
#pragma once

#include <memory>
#include <unordered_map>

#include "tests/coherence/model_host.hpp"

namespace osf::model {

constexpr u32 PAIRS = 3, WIRES = 6;

// Numbers for byte strings.
class Interned {
public:
    u32 number(const std::string& bytes) {
        auto [found, is_new] = numbers_.try_emplace(bytes, u32(all_.size()));
        if (is_new) all_.push_back(&found->first);
        return found->second;
    }
    const std::string& operator[](u32 number) const { return *all_[number]; }
    size_t size() const { return all_.size(); }

private:
    std::unordered_map<std::string, u32> numbers_;
    std::vector<const std::string*> all_;
};

// Open addressing from u64 to u64; no key is ~0.
class Memo {
public:
    u64* find(u64 key) {
        for (size_t i = mix(key) & mask_;; i = (i + 1) & mask_) {
            if (cells_[i].first == key) return &cells_[i].second;
            if (cells_[i].first == ~0ull) return nullptr;
        }
    }
    void add(u64 key, u64 value) {
        if (++used_ * 3 > cells_.size() * 2) {
            std::vector<std::pair<u64, u64>> old(cells_.size() * 2, {~0ull, 0});
            old.swap(cells_);
            mask_ = cells_.size() - 1;
            for (auto& cell : old)
                if (cell.first != ~0ull) place(cell.first, cell.second);
        }
        place(key, value);
    }

private:
    static u64 mix(u64 key) { return (key ^ key >> 29) * 0x9e3779b97f4a7c15ull >> 20; }
    void place(u64 key, u64 value) {
        size_t i = mix(key) & mask_;
        while (cells_[i].first != ~0ull) i = (i + 1) & mask_;
        cells_[i] = {key, value};
    }
    std::vector<std::pair<u64, u64>> cells_ = std::vector<std::pair<u64, u64>>(1 << 16, {~0ull, 0});
    size_t used_ = 0, mask_ = (1 << 16) - 1;
};

struct Facts {  // of a host, without taking it apart
    Life life = dead;
    bool idle = false;
    u8 up = 0, lost = 0, fresh = 0, stale_reads = 0;  // masks: peers; units
    u8 rights[UNITS] = {}, wants[UNITS] = {};
    bool present[UNITS] = {}, shadow[UNITS] = {}, sole[UNITS] = {};  // sole: no fresh bytes but the ones in place
    u64 words[UNITS] = {};
};

struct Outcome {  // of an action
    u32 calls = 0;
    bool killed = false;
    std::string violation;
    std::vector<std::pair<u32, u16>> sent;
};

constexpr u32 wire_of(u32 from, u32 to) { return from * 2 + (to > from ? to - 1 : to); }
constexpr u32 pair_of(u32 a, u32 b) { return a + b - 1; }

// Since host a was last connected to host b: it stopped using what it borrowed; it has none of that any more.
enum Parting : u32 { none_yet, suspended, purged };

struct World {
    u32 host[HOSTS], wire[WIRES], links, left;  // links: 3 bits, partings 2 x 6, given up 6; left: what may still happen
    bool operator==(const World&) const = default;
    auto operator<=>(const World&) const = default;
    bool linked(u32 a, u32 b) const { return get(links, pair_of(a, b), 1); }
    void set_linked(u32 a, u32 b, bool on) { set(links, pair_of(a, b), 1, on); }
    Parting parting(u32 a, u32 b) const { return Parting(get(links, 3 + 2 * wire_of(a, b), 2)); }
    void set_parting(u32 a, u32 b, Parting value) { set(links, 3 + 2 * wire_of(a, b), 2, value); }
    bool gave_up(u32 a, u32 b) const { return get(links, 15 + wire_of(a, b), 1); }  // a has declared b lost
    void set_gave_up(u32 a, u32 b, bool on) { set(links, 15 + wire_of(a, b), 1, on); }
    u32 faults() const { return get(left, 0, 2); }
    u32 touches() const { return get(left, 2, 4); }
    u32 evictions() const { return get(left, 6, 4); }
    u32 suspensions() const { return get(left, 10, 4); }
    void set_faults(u32 count) { set(left, 0, 2, count); }
    void set_touches(u32 count) { set(left, 2, 4, count); }
    void set_evictions(u32 count) { set(left, 6, 4, count); }
    void set_suspensions(u32 count) { set(left, 10, 4, count); }
    static u32 get(u32 word, u32 at, u32 bits) { return word >> at & ((1u << bits) - 1); }
    static void set(u32& word, u32 at, u32 bits, u32 value) { word = (word & ~(((1u << bits) - 1) << at)) | value << at; }
};

// All hosts and wires that were ever met.
class Universe {
public:
    Universe(const Shape& of, Fault wrong) : shape(of), fault(wrong) { wires.number(""), wire_fresh_.push_back(0); }
    const Shape shape;
    const Fault fault;
    Interned hosts, wires;
    u32 received = 0;  // kinds of messages, as bits

    u32 add(const Actor& actor) {
        static constexpr u32 same[HOSTS] = {0, 1, 2};
        u32 number = hosts.number(actor.pack(same));
        if (number == facts_.size()) facts_.push_back(look(actor));
        return number;
    }
    u32 born(u32 self) { return add(Actor(shape, fault, self)); }
    u32 died(u32 self) {
        Actor actor(shape, fault, self);
        actor.life = dead;
        return add(actor);
    }
    const Facts& facts(u32 host) const { return facts_[host]; }
    u8 fresh_on(u32 wire) const { return wire_fresh_[wire]; }

    const Outcome& act(u32& host, Action action, u32 peer, u32 argument, u32 limit) {
        u64 key = u64(host) << 32 | u64(action) << 28 | u64(peer) << 24 | u64(limit) << 16 | argument;
        if (u64* known = memo_.find(key)) {
            host = u32(*known);
            return outcomes_[*known >> 32];
        }
        if (action == a_receive) received |= 1u << kind_of(u16(argument));
        Actor actor(shape, fault, hosts[host]);
        Outcome outcome;
        try {
            actor.run(action, peer, argument, limit);
        } catch (const Violation& violation) {
            outcome.violation = violation.what;
        }
        outcome.calls = actor.calls;
        outcome.killed = action != a_kill && actor.life == keeperless && facts_[host].life != keeperless;
        outcome.killed |= action == a_start && actor.life == keeperless;
        outcome.sent = std::move(actor.sent);
        host = add(actor);
        u32 number = store(outcome);
        memo_.add(key, u64(number) << 32 | host);
        return outcomes_[number];
    }
    u32 swapped(u32 host, const u32* to) {  // the same with two hosts renamed
        if (host < swaps_.size() && swaps_[host]) return swaps_[host] - 1;
        Actor actor(shape, fault, hosts[host]);
        u32 other = hosts.number(actor.pack(to));
        if (other == facts_.size()) facts_.push_back(look(Actor(shape, fault, hosts[other])));
        if (swaps_.size() < hosts.size()) swaps_.resize(hosts.size() * 2);
        swaps_[host] = other + 1, swaps_[other] = host + 1;
        return other;
    }
    // Messages of one unit stay in order, HELD_END in order with all; so those of different units are kept sorted.
    u32 append(u32 wire, u16 message) {
        return wire_memo(1ull << 62 | u64(wire) << 16 | message, [&](std::vector<u16> all) {
            size_t at = all.size();
            if (kind_of(message) != m_held_end)
                while (at && kind_of(all[at - 1]) != m_held_end && unit_in(all[at - 1]) > unit_in(message)) at--;
            all.insert(all.begin() + long(at), message);
            return all;
        });
    }
    u32 remove(u32 wire, u32 at) {
        return wire_memo(2ull << 62 | u64(wire) << 16 | at, [&](std::vector<u16> all) {
            all.erase(all.begin() + at);
            return all;
        });
    }
    u32 stale(u32 wire, u32 unit) {
        if (!(wire_fresh_[wire] >> unit & 1)) return wire;
        return wire_memo(3ull << 62 | u64(wire) << 16 | unit, [&](std::vector<u16> all) {
            for (u16& message : all)
                if (unit_in(message) == unit) message &= u16(~FRESH);
            return all;
        });
    }
    u32 length(u32 wire) const { return u32(wires[wire].size() / 2); }
    u16 message(u32 wire, u32 at) const {
        const std::string& bytes = wires[wire];
        return u16(u8(bytes[2 * at]) | u8(bytes[2 * at + 1]) << 8);
    }
    bool first_of_its_unit(u32 wire, u32 at) const {
        if (kind_of(message(wire, at)) == m_held_end) return at == 0;
        for (u32 i = 0; i < at; i++)
            if (unit_in(message(wire, i)) == unit_in(message(wire, at)) || kind_of(message(wire, i)) == m_held_end) return fault == Fault::overtaking;
        return true;
    }

private:
    template <class Change>
    u32 wire_memo(u64 key, Change change) {
        if (u64* known = wire_memo_.find(key)) return u32(*known);
        u32 wire = u32(key >> 16), n = 0;
        std::vector<u16> all;
        for (n = 0; n < length(wire); n++) all.push_back(message(wire, n));
        all = change(all);
        std::string bytes;
        u8 fresh = 0;
        for (u16 m : all) {
            bytes.push_back(char(m)), bytes.push_back(char(m >> 8));
            if (m & FRESH) fresh |= u8(1 << unit_in(m));
        }
        u32 number = wires.number(bytes);
        if (number == wire_fresh_.size()) wire_fresh_.push_back(fresh);
        wire_memo_.add(key, number);
        return number;
    }
    u32 store(const Outcome& outcome) {
        std::string text{char(outcome.calls), char(outcome.killed)};
        for (auto [to, m] : outcome.sent) text += {char(to), char(m), char(m >> 8)};
        text += outcome.violation;
        u32 number = outcome_numbers_.number(text);
        if (number == outcomes_.size()) outcomes_.push_back(outcome);
        return number;
    }
    Facts look(const Actor& actor) const {
        Facts f;
        f.life = actor.life;
        if (f.life == dead) return f;
        for (u32 p = 0; p < HOSTS && f.life == alive; p++) f.up |= u8(actor.core.up(p) << p), f.lost |= u8(actor.core.is_lost(p) << p);
        f.idle = actor.core.idle();
        for (u32 s = 0; s < shape.slots; s++) {
            u32 unit = actor.slots[s].unit;
            f.idle &= unit == NO_UNIT || f.lost >> shape.home[unit] & 1;
        }
        for (u32 u = 0; u < shape.units; u++) {
            bool elsewhere = actor.shadow[u].fresh;
            for (u32 s = 0; s < shape.slots; s++) elsewhere |= actor.slots[s].unit == u && actor.slots[s].fresh;
            if (elsewhere || actor.place[u].fresh) f.fresh |= u8(1 << u);
            f.sole[u] = !elsewhere;
            f.rights[u] = actor.rights[u];
            if (f.rights[u] && !actor.place[u].fresh) f.stale_reads |= u8(1 << u);
            f.wants[u] = actor.core.wanted(shape.home[u], shape.number[u]);
            f.present[u] = actor.place[u].present, f.shadow[u] = actor.shadow[u].present;
            f.words[u] = actor.words[u];
        }
        return f;
    }

    Memo memo_, wire_memo_;
    Interned outcome_numbers_;
    std::deque<Outcome> outcomes_;
    std::deque<Facts> facts_;  // these two stay where they are
    std::vector<u8> wire_fresh_;
    std::vector<u32> swaps_;
};

}  // namespace osf::model
