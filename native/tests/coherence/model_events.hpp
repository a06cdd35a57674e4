// What can happen next in a world, and what may never be true of one.
#pragma once

#include "tests/coherence/model_world.hpp"

namespace osf::model {

enum EventKind : u8 {
    e_start, e_disconnected, e_connected, e_deliver, e_lost, e_purge, e_birth,  // these alone bring every world to rest
    e_touch, e_evict, e_write, e_suspend, e_kill, e_death, e_cut,
};
constexpr bool calms(EventKind kind) { return kind <= e_birth; }

struct Event {
    EventKind kind;
    u8 host, peer = 0;
    u16 argument = 0;       // unit | 2 for a write; place on the wire
    u8 killed_after = ALL_CALLS;  // calls of the Medium
};

inline std::string name_of(const Event& e, const Universe& all, const World& before) {
    static const char* const names[] = {"keeper starts", "learns of the break with", "is connected to", "receives from", "declares lost", "purges what is of",
                                        "is born again", "touches", "evicts", "writes", "suspends what is of",
                                        "keeper killed", "host dies", "is cut from"};
    static const char* const messages[] = {"GETS", "GETM", "INVACK", "BACK", "DATAS", "DATAM", "GRANT", "INV", "RECALL", "TAKEN", "HELD", "HELD_END", "DROP"};
    std::string text = "host " + std::to_string(e.host) + " " + names[e.kind];
    if (e.kind == e_touch) text += std::string(e.argument & 2 ? " (write)" : " (read)");
    if (e.kind == e_touch || e.kind == e_evict || e.kind == e_write) text += " unit " + std::to_string(e.argument & 1);
    else if (e.kind != e_start && e.kind != e_birth && e.kind != e_kill && e.kind != e_death) text += " " + std::to_string(e.peer);
    if (e.kind == e_deliver) {
        u16 m = all.message(before.wire[wire_of(e.peer, e.host)], e.argument);
        text += std::string(" ") + messages[kind_of(m)] + " flags " + std::to_string(flags_in(m));
        if (unit_in(m) != NO_UNIT) text += " unit " + std::to_string(unit_in(m));
        if (m & BYTES) text += m & FRESH ? " fresh" : " stale";
    }
    if (e.killed_after != ALL_CALLS) text += ", keeper killed after " + std::to_string(e.killed_after) + " calls";
    return text;
}

constexpr u32 ANY = 15;  // as many as there can be

struct Bounds {  // on one path; faults: keepers killed, hosts that die, connections cut
    u32 faults = 1, suspensions = 1, evictions = ANY, touches = ANY;
    bool kills = true;   // else the only faults are cuts
    size_t worlds = 40'000'000;
};

class Events {
public:
    Events(Universe& universe, const Bounds& bounds) : all_(universe), shape_(universe.shape), bounds_(bounds) {}

    // Calls visit(event, world after it); a Violation is thrown by either.
    template <class Visit>
    void each(const World& w, Visit&& visit) {
        for (u32 h = 0; h < HOSTS; h++) {
            const Facts& f = all_.facts(w.host[h]);
            if (f.life == dead) {
                if (all_know(w, h)) happen(w, {e_birth, u8(h)}, visit);
                continue;
            }
            if (f.life == keeperless) happen(w, {e_start, u8(h)}, visit);
            else of_keeper(w, h, f, visit);
            for (u32 u = 0; u < shape_.units; u++)
                if (f.rights[u] == 2 && (!f.sole[u] || fresh_elsewhere(w, h, u))) happen(w, {e_write, u8(h), 0, u16(u)}, visit);
            if (!w.faults() || !bounds_.kills) continue;
            if (f.life == alive) happen(w, {e_kill, u8(h)}, visit);
            happen(w, {e_death, u8(h)}, visit);
        }
        for (u32 a = 0; a < HOSTS; a++)
            for (u32 b = a + 1; b < HOSTS; b++)
                if (w.linked(a, b) && w.faults()) happen(w, {e_cut, u8(a), u8(b)}, visit);
    }

    World apply(const World& before, const Event& e) {
        World w = before;
        u32 h = e.host, p = e.peer;
        if (e.kind == e_kill || e.kind == e_death || e.kind == e_cut) spend_fault(w);
        switch (e.kind) {
            case e_start: run(w, e, a_start, 0, 0); break;
            case e_disconnected:
                run(w, e, a_disconnected, p, 0);
                w.wire[wire_of(p, h)] = 0;
                break;
            case e_connected:  // the first of the two makes the link
                if (!w.linked(h, p)) {
                    w.set_linked(h, p, true);
                    part(w, h, p, none_yet, false);
                    part(w, p, h, none_yet, false);
                }
                run(w, e, a_connected, p, 0);
                break;
            case e_deliver: {
                u32& wire = w.wire[wire_of(p, h)];
                u16 message = all_.message(wire, e.argument);
                wire = all_.remove(wire, e.argument);
                run(w, e, a_receive, p, message);
                break;
            }
            case e_suspend:
                if (bounds_.suspensions != ANY) w.set_suspensions(w.suspensions() - 1);
                if (e.killed_after == ALL_CALLS) w.set_parting(h, p, suspended);
                run(w, e, a_suspend, p, 0);
                break;
            case e_purge:
                if (e.killed_after == ALL_CALLS) w.set_parting(h, p, purged);
                run(w, e, a_purge, p, 0);
                break;
            case e_lost:  // noted durably before anything is done about it
                part(w, h, p, e.killed_after == ALL_CALLS ? std::max(w.parting(h, p), suspended) : w.parting(h, p), true);
                for (u32 u = 0; u < shape_.units; u++) {  // what it wrote counts no more, wherever it is kept
                    u64 word = all_.facts(w.host[h]).words[u];
                    if (shape_.home[u] != h || home_state(word) != lent || owner_of(word) != p) continue;
                    make_stale(w, HOSTS, u);
                }
                rebase(w);
                run(w, e, a_lost, p, 0);
                break;
            case e_birth:
                for (u32 u = 0; u < shape_.units; u++)
                    if (shape_.home[u] == h) make_stale(w, HOSTS, u);
                w.host[h] = all_.born(h);
                for (u32 q = 0; q < HOSTS; q++)
                    if (q != h) part(w, h, q, purged, true);
                break;
            case e_touch:
                if (bounds_.touches != ANY) w.set_touches(w.touches() - 1);
                run(w, e, a_want, 0, e.argument);
                break;
            case e_evict:
                if (bounds_.evictions != ANY) w.set_evictions(w.evictions() - 1);
                run(w, e, a_evict, 0, e.argument);
                break;
            case e_write: make_stale(w, h, e.argument & 1); break;
            case e_kill:
                all_.act(w.host[h], a_kill, 0, 0, ALL_CALLS);
                cut_off(w, h);
                break;
            case e_death:
                w.host[h] = all_.died(h);
                cut_off(w, h);
                for (u32 q = 0; q < HOSTS; q++)
                    if (q != h) part(w, h, q, purged, true);
                break;
            case e_cut: cut(w, h, p); break;
        }
        rebase(w);
        return w;
    }

    void check(const World& w) const {
        const Facts* f[HOSTS];
        for (u32 h = 0; h < HOSTS; h++) f[h] = &all_.facts(w.host[h]);
        for (u32 u = 0; u < shape_.units; u++) {
            u32 readers = 0, writers = 0;
            for (u32 h = 0; h < HOSTS; h++) {
                readers += f[h]->rights[u] > 0, writers += f[h]->rights[u] == 2;
                if (f[h]->stale_reads >> u & 1) throw Violation{"host " + std::to_string(h) + " can read old bytes of unit " + std::to_string(u)};
            }
            if (writers && readers > 1) throw Violation{"a writer and others have unit " + std::to_string(u)};
        }
        for (u32 wire : w.wire)
            if (all_.length(wire) > 7 * shape_.units) throw Violation{"messages pile up"};
        for (u32 a = 0; a < HOSTS; a++) {
            if (f[a]->life == keeperless) return;
            for (u32 b = 0; b < HOSTS && f[a]->life == alive; b++) {
                bool together = f[a]->up >> b & 1 && w.linked(a, b), apart = f[a]->lost >> b & 1 && (f[b]->life == dead || f[b]->lost >> a & 1);
                if (a != b && ((!together && !apart) || w.wire[wire_of(a, b)] || (w.gave_up(b, a) && f[b]->life != dead && w.parting(a, b) != purged))) return;
            }
        }
        at_rest(f);
    }

private:
    template <class Visit>
    void of_keeper(const World& w, u32 h, const Facts& f, Visit&& visit) {
        for (u32 p = 0; p < HOSTS; p++) {
            if (p == h) continue;
            bool up = f.up >> p & 1, linked = w.linked(h, p);
            if (up && !linked) happen(w, {e_disconnected, u8(h), u8(p)}, visit);
            if (!up && (linked || can_link(w, h, p))) happen(w, {e_connected, u8(h), u8(p)}, visit);
            if (!up && !linked && !(f.lost >> p & 1)) {
                bool gone = all_.facts(w.host[p]).life == dead || w.parting(p, h) >= suspended || all_.fault == Fault::lost_before_suspension;
                if (w.parting(h, p) == none_yet && w.suspensions()) happen(w, {e_suspend, u8(h), u8(p)}, visit);
                if (w.parting(h, p) < purged && w.gave_up(p, h)) happen(w, {e_purge, u8(h), u8(p)}, visit);
                if (gone) happen(w, {e_lost, u8(h), u8(p)}, visit);
            }
            u32 wire = w.wire[wire_of(p, h)];
            for (u32 i = 0; up && i < all_.length(wire); i++)
                if (all_.first_of_its_unit(wire, i)) happen(w, {e_deliver, u8(h), u8(p), u16(i)}, visit);
        }
        for (u32 u = 0; u < shape_.units; u++) {
            for (u32 level = 1; level <= 2 && w.touches(); level++)
                if (f.rights[u] < level && f.wants[u] < level) happen(w, {e_touch, u8(h), 0, u16(u | (level == 2) << 1)}, visit);
            if (shape_.home[u] != h && f.words[u] && w.evictions()) happen(w, {e_evict, u8(h), 0, u16(u)}, visit);
        }
    }
    template <class Visit>
    void happen(const World& w, Event e, Visit&& visit) {
        last = e;
        calls_ = 0;
        visit(e, apply(w, e));
        if (!w.faults() || !bounds_.kills) return;
        for (u32 calls = calls_, k = 1; k < calls; k++) {  // before the first call, after the last: a kill beside the event
            e.killed_after = u8(k);
            last = e;
            visit(e, apply(w, e));
        }
    }
    void run(World& w, const Event& e, Action action, u32 peer, u32 argument) {
        const Outcome& outcome = all_.act(w.host[e.host], action, peer, argument, e.killed_after);
        if (!outcome.violation.empty()) throw Violation{outcome.violation};
        calls_ = outcome.calls;
        for (auto [to, message] : outcome.sent) {
            u32& wire = w.wire[wire_of(e.host, to)];
            if (w.linked(e.host, to)) wire = all_.append(wire, message);
        }
        if (!outcome.killed) return;
        spend_fault(w);
        cut_off(w, e.host);
    }
    static void part(World& w, u32 a, u32 b, Parting parting, bool gave_up) { w.set_parting(a, b, parting), w.set_gave_up(a, b, gave_up); }
    static void spend_fault(World& w) { w.set_faults(w.faults() - 1); }
    // What is on the wire may still be read by whoever has not learned of the break.
    void cut(World& w, u32 a, u32 b) {
        w.set_linked(a, b, false);
        if (!(all_.facts(w.host[b]).up >> a & 1)) w.wire[wire_of(a, b)] = 0;
        if (!(all_.facts(w.host[a]).up >> b & 1)) w.wire[wire_of(b, a)] = 0;
    }
    void cut_off(World& w, u32 h) {
        for (u32 p = 0; p < HOSTS; p++)
            if (p != h) cut(w, h, p);
    }
    // Neither thinks of the old connection any more, and whom one has declared lost, has given up all that it borrowed.
    bool can_link(const World& w, u32 a, u32 b) const {
        const Facts& other = all_.facts(w.host[b]);
        return other.life == alive && !(other.up >> a & 1) && (!w.gave_up(a, b) || w.parting(b, a) == purged) &&
               (!w.gave_up(b, a) || w.parting(a, b) == purged);
    }
    bool all_know(const World& w, u32 h) const {
        for (u32 p = 0; p < HOSTS; p++)
            if (p != h && all_.facts(w.host[p]).life != dead && !(w.gave_up(p, h) && w.parting(p, h) >= suspended)) return false;
        return true;
    }
    bool fresh_elsewhere(const World& w, u32 h, u32 u) const {
        u32 fresh = 0;
        for (u32 p = 0; p < HOSTS; p++)
            if (p != h) fresh |= all_.facts(w.host[p]).fresh;
        for (u32 wire : w.wire) fresh |= all_.fresh_on(wire);
        return fresh >> u & 1;
    }
    void make_stale(World& w, u32 writer, u32 u) {
        for (u32 p = 0; p < HOSTS; p++) {
            bool any = all_.facts(w.host[p]).fresh >> u & 1;
            if (any || p == writer) all_.act(w.host[p], p == writer ? a_written : a_stale, 0, u, ALL_CALLS);
        }
        for (u32& wire : w.wire) wire = all_.stale(wire, u);
    }
    // The latest bytes are gone: that is right if the host that borrowed them is, or counts as lost. Then what was lent is the
    // latest.
    void rebase(World& w) {
        for (u32 u = 0; u < shape_.units; u++) {
            u32 home = shape_.home[u];
            const Facts& f = all_.facts(w.host[home]);
            if (f.life == dead || fresh_elsewhere(w, HOSTS, u)) continue;
            u32 owner = owner_of(f.words[u]);
            bool given_up = home_state(f.words[u]) == lent && (all_.facts(w.host[owner]).life == dead || w.gave_up(home, owner));
            if (!given_up) throw Violation{"the latest bytes of unit " + std::to_string(u) + " are lost"};
            const Outcome& outcome = all_.act(w.host[home], a_rebase, 0, u, ALL_CALLS);
            if (!outcome.violation.empty()) throw Violation{outcome.violation};
        }
    }
    // Nothing is under way, and hosts that are not connected count each other as lost: nobody waits, and all words agree.
    void at_rest(const Facts* const* f) const {
        for (u32 h = 0; h < HOSTS; h++)
            if (f[h]->life == alive && !f[h]->idle) throw Violation{"all is quiet but host " + std::to_string(h) + " waits, or a slot is taken"};
        for (u32 u = 0; u < shape_.units; u++) {
            u32 home = shape_.home[u];
            u64 word = f[home]->words[u];
            bool sound = (home_state(word) == lent) == f[home]->shadow[u];
            sound &= f[home]->life == dead || (home_state(word) != lent) == f[home]->present[u];
            sound &= f[home]->rights[u] <= (word == 0 ? 2 : home_state(word) == home_shared ? 1 : 0);
            for (u32 h = 0; h < HOSTS; h++) {
                if (h == home) continue;
                u64 copy = f[h]->words[u];
                if (f[home]->life == dead && copy_state(copy) == escrow) continue;  // until it comes back
                bool borrows = home_state(word) == lent && owner_of(word) == h;
                bool shares = home_state(word) == home_shared && (sharers_of(word) >> h & 1);
                sound &= copy == (borrows ? u64(modified) : u64(invalid)) || (shares && copy == u64(shared));
                sound &= f[h]->present[u] == (copy != invalid) && f[h]->rights[u] <= copy;
            }
            if (!sound) throw Violation{"all is quiet but the words of unit " + std::to_string(u) + " do not agree"};
        }
    }

    Universe& all_;
    const Shape& shape_;
    const Bounds bounds_;
    u32 calls_ = 0;

public:
    Event last{};  // the one being applied, for whom it violates
};

}  // namespace osf::model
