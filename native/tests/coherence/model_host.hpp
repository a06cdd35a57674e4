// What a host of the model does: the Medium, with the rules that memory and processes impose on its user.
#pragma once

#include "tests/coherence/model.hpp"

namespace osf::model {

inline Actor::Actor(const Shape& of, Fault wrong, u32 number) : shape(of), fault(wrong), self(number), core(*this, number, HOSTS) {
    for (u32 u = 0; u < shape.units; u++)
        if (shape.home[u] == self) place[u] = {true, true};
}

inline Actor::Actor(const Shape& of, Fault wrong, const std::string& bytes)
    : shape(of), fault(wrong), self(u8(bytes[0])), core(*this, u8(bytes[0]), HOSTS) {
    Unpacker in(bytes);
    in.get();
    life = Life(in.get());
    if (life == dead) return;
    for (u32 u = 0; u < shape.units; u++) {
        u64 state = in.get(), owner = in.get(), sharers = in.get(), bits = in.get();
        words[u] = state | owner << 8 | sharers << 32;
        place[u] = {(bits & 1) != 0, (bits & 2) != 0};
        shadow[u] = {(bits & 4) != 0, (bits & 8) != 0};
        rights[u] = bits >> 4;
    }
    for (u32 s = 0; s < shape.slots; s++) {
        u8 bits = in.get();
        slots[s] = {bits & 3u, (bits & 4) != 0};
    }
    if (life == alive) core.unpack(in, shape);
}

inline std::string Actor::pack(const u32* to) const {
    Packer out;
    out.put(to[self]);
    out.put(life);
    if (life == dead) return out.bytes;
    for (u32 u = 0; u < shape.units; u++) {
        bool own = shape.home[u] == self;
        out.put(words[u] & 255);
        out.put(own && home_state(words[u]) == lent ? to[owner_of(words[u])] : words[u] >> 8 & 255);
        out.put(own ? Probe::renamed(sharers_of(words[u]), to) : 0);
        out.put(u32(place[u].present) | u32(place[u].fresh) << 1 | u32(shadow[u].present) << 2 | u32(shadow[u].fresh) << 3 | u32(rights[u]) << 4);
    }
    for (u32 s = 0; s < shape.slots; s++) out.put(slots[s].unit | u32(slots[s].fresh) << 2);
    if (life == alive) core.pack(out, shape, to);
    return out.bytes;
}

inline u32 Actor::at(u32 home, u64 unit) const {
    u32 found = shape.unit(home, unit);
    demand(found != NO_UNIT, "a unit that does not exist");
    return found;
}

inline void Actor::step() {
    if (calls == limit_) throw Killed{};
    calls++;
}

// The keeper is gone. Which slots are taken is found in the words when the next one starts.
inline void Actor::die() {
    life = keeperless;
    for (u32 s = 0; s < shape.slots; s++) {
        bool named = false;
        for (u32 u = 0; u < shape.units; u++)
            named |= shape.home[u] != self && copy_state(words[u]) == escrow && escrow_slot(words[u]) == s;
        if (!named) slots[s] = {};
    }
}

inline void Actor::run(Action action, u32 peer, u32 argument, u32 limit) {
    limit_ = limit;
    for (u32 u = 0; u < shape.units; u++) touched_[u] = life == alive ? core.wanted(shape.home[u], shape.number[u]) : 0;
    try {
        act(action, peer, argument);
    } catch (const Killed&) {
        return die();
    } catch (const Error& error) {
        throw Violation{error.what()};
    }
    for (u32 u = 0; u < shape.units; u++)
        demand(life != alive || core.wanted(shape.home[u], shape.number[u]) >= touched_[u], "a local touch is forgotten");
}

inline void Actor::act(Action action, u32 peer, u32 argument) {
    u32 u = argument & 1;
    switch (action) {
        case a_receive: {
            const u16 message = u16(argument);
            const u32 unit = unit_in(message);
            const char bytes[BODY] = {char(unit), char((message & FRESH) != 0)};
            return core.receive(peer, kind_of(message), unit == NO_UNIT ? 0 : shape.number[unit], flags_in(message), {bytes, message & BYTES ? BODY : 0});
        }
        case a_want: {
            u8 level = argument & 2 ? 2 : 1;
            if (touched_[u] < level) touched_[u] = level;
            return core.want(shape.home[u], shape.number[u], level == 2);
        }
        case a_evict: core.evict(shape.home[u], shape.number[u]); return;
        case a_start:
            life = alive;
            return core.start();
        case a_connected: return core.connected(peer);
        case a_disconnected: return core.disconnected(peer);
        case a_lost: return core.lost(peer);
        case a_purge: return core.purge(peer);
        case a_suspend: return fault == Fault::suspension_drops ? core.purge(peer) : core.suspend(peer);
        case a_kill: return die();
        case a_stale:
        case a_written:
            if (action == a_stale) place[u].fresh = false;
            shadow[u].fresh = false;
            for (Slot& slot : slots)
                if (slot.unit == u) slot.fresh = false;
            return;
        case a_rebase:
            demand(shadow[u].present, "a lost host took the only bytes: there is no shadow");
            shadow[u].fresh = true;
            return;
    }
}

inline void Actor::set_word(u32 home, u64 unit, u64 value) {
    step();
    words[at(home, unit)] = value;
    if (filling_ != NO_UNIT) {
        step();
        place[filling_] = {true, filling_fresh_};
        filling_ = NO_UNIT;
    }
}

inline void Actor::each_word(u32 home, const std::function<void(u64, u64)>& show) {
    for (u32 u = 0; u < shape.units; u++)
        if (shape.home[u] == home && words[u]) show(shape.number[u], words[u]);
}

inline void Actor::tidy(u32 home) {
    step();
    if (fault == Fault::no_tidy) return;
    for (u32 u = 0; u < shape.units; u++) {
        if (shape.home[u] != home) continue;
        if (home == self) {
            if (home_state(words[u]) == lent) drop(u);
            else shadow[u] = {};
        } else if (copy_state(words[u]) == invalid || copy_state(words[u]) == escrow) {
            drop(u);
        }
    }
}

inline void Actor::protect(u32 home, u64 unit) {
    step();
    u8& right = rights[at(home, unit)];
    if (right == 2 && fault != Fault::no_protect) right = 1;
}

inline void Actor::punch(u32 home, u64 unit) {
    step();
    if (fault != Fault::no_punch) drop(at(home, unit));
}

inline void Actor::fill(u32 home, u64 unit, Body body) {
    u32 u = at(home, unit);
    demand(body.size() == BODY && u32(body[0]) == u, "filled from a message without the unit's bytes");
    demand(!rights[u], "filled while a process can see it");
    if (fault == Fault::word_before_fill) {
        filling_ = u;
        filling_fresh_ = body[1];
        return;
    }
    step();
    place[u] = {true, body[1] != 0};
}

inline void Actor::save(u64 unit) {
    step();
    u32 u = at(self, unit);
    demand(place[u].present, "saved a hole");
    demand(rights[u] != 2, "saved while a process can write");
    shadow[u] = place[u];
}

inline void Actor::restore(u64 unit) {
    step();
    u32 u = at(self, unit);
    demand(shadow[u].present, "restored from no shadow");
    demand(!rights[u], "restored while a process can see it");
    place[u] = shadow[u];
}

inline void Actor::drop_shadow(u64 unit) {
    step();
    shadow[at(self, unit)] = {};
}

inline bool Actor::take_slot(u32 home, u64 unit, u32& slot) {
    step();
    u32 u = at(home, unit);
    demand(place[u].present, "a hole went to a slot");
    demand(rights[u] != 2, "copied to a slot while a process can write");
    for (slot = 0; slot < shape.slots; slot++)
        if (slots[slot].unit == NO_UNIT) {
            slots[slot] = {u, place[u].fresh};
            return true;
        }
    return false;
}

inline void Actor::free_slot(u32 slot) {
    step();
    demand(slot < shape.slots && (slots[slot].unit != NO_UNIT || fault == Fault::slot_given_up), "a free slot was freed");
    slots[slot] = {};
}

inline void Actor::admit(u32 home, u64 unit, bool write) {
    step();
    u32 u = at(home, unit);
    u8 level = write ? 2 : 1;
    demand(place[u].present, "a process was let into a hole");
    if (rights[u] < level) rights[u] = level;
    if (touched_[u] <= level) touched_[u] = 0;
}

inline void Actor::condemn(u32 home, u64 unit) {
    step();
    touched_[at(home, unit)] = 0;
}

inline void Actor::send(u32 host, Notice message, u64 unit, u32 flags, Source source, u32 slot) {
    step();
    if (message == m_held_end) return sent.emplace_back(host, packed(message, NO_UNIT, 0, false, false)), void();
    u32 u = at(to_home(message) ? host : self, unit);
    Place bytes;
    if (source == Source::own || source == Source::copy) {
        bytes = place[u];
        demand(rights[u] != 2, "sent while a process can write");
    } else if (source == Source::shadow) {
        bytes = shadow[u];
    } else if (source == Source::slot) {
        bytes = {slots[slot].unit == u, slots[slot].fresh};
    }
    demand(source == Source::none || bytes.present, "sent a hole");
    if ((message == m_invack && fault == Fault::no_invack) || (message == m_held && fault == Fault::no_held)) return;
    sent.emplace_back(host, packed(message, u, flags, source != Source::none, bytes.fresh));
    if (fault == Fault::slot_given_up && source == Source::slot) slots[slot] = {};
    if (fault == Fault::shadow_dropped && message == m_datam) shadow[u] = {};
}

}  // namespace osf::model
