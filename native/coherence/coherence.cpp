#include "coherence/coherence.hpp"

namespace osf::coherence {

constexpr u32 NOBODY = 255;  // of a request whose host went away while it was served

static u32 bit(u32 host) { return 1u << host; }

[[noreturn]] static void unexpected(const char* what, u32 host, u64 unit, u64 word) {
    throw Error(Code::refused, std::string("host ") + std::to_string(host) + " sent " + what + " for unit " + std::to_string(unit) +
                                   ", whose word is " + std::to_string(word));
}

Coherence::Coherence(Medium& medium, u32 self, u32 hosts)
    : medium_(medium), self_(self), hosts_(hosts), peers_(hosts), wants_(hosts), recalls_(hosts) {}

void Coherence::start() {
    for (u32 home = 0; home < hosts_; home++) medium_.tidy(home);
}

void Coherence::tell(u32 host, Notice message, u64 unit, u32 flags, Source source, u32 slot) {
    if (peers_[host].up) medium_.send(host, message, unit, flags, source, slot);
}

bool Coherence::may(u32 home, u64 unit, bool write) {
    u64 word = medium_.word(home, unit);
    if (self(home)) return home_state(word) == at_home || (home_state(word) == home_shared && !write);
    return copy_state(word) == modified || (copy_state(word) == shared && !write);
}

void Coherence::want(u32 home, u64 unit, bool write) {
    if (may(home, unit, write)) return medium_.admit(home, unit, write || may(home, unit, true));
    if (peers_[home].lost) return medium_.condemn(home, unit);
    u8& wanted = wants_[home][unit];
    u8 level = write ? 2 : 1;
    if (wanted >= level) return;
    wanted = level;
    if (self(home)) request({self_, write, false}, unit);
    else ask(home, unit);
}

void Coherence::ask(u32 home, u64 unit) {
    CopyState state = copy_state(medium_.word(home, unit));
    // Asked after TAKEN: were a grant lost, the home could not tell the older bytes in the slot from what it has lent since.
    if (state == escrow) return;
    bool have = state == shared;
    bool write = wants_[home][unit] == 2;
    tell(home, write ? m_getm : m_gets, unit, have ? HAVE : 0);
}

void Coherence::receive(u32 from, Notice message, u64 unit, u32 flags, Body body) {
    switch (message) {
        case m_gets: return request({from, false, false}, unit);
        case m_getm: return request({from, true, (flags & HAVE) != 0}, unit);
        case m_invack: {
            u64 word = medium_.word(self_, unit);
            if (home_state(word) != home_shared || !(sharers_of(word) & bit(from))) unexpected("INVACK", from, unit, word);
            return release_from(from, unit, word);
        }
        case m_back: return take_back(from, unit, flags, body);
        case m_datas:
        case m_datam:
        case m_grant: return granted(from, unit, message, body);
        case m_inv: return invalidated(from, unit);
        case m_recall: return recalled(from, unit, flags);
        case m_taken: {
            u64 word = medium_.word(from, unit);
            if (copy_state(word) == shared) return medium_.set_word(from, unit, shared);
            if (copy_state(word) != escrow) return;
            medium_.set_word(from, unit, invalid);
            if (wants_[from].count(unit)) ask(from, unit);
            return free_slot(escrow_slot(word));
        }
        case m_held:
            peers_[from].held[unit] = flags;
            return;
        case m_held_end: return reconcile(from);
        case m_drop: {
            u64 word = medium_.word(from, unit);
            medium_.set_word(from, unit, invalid);
            medium_.punch(from, unit);
            if (copy_state(word) == escrow) free_slot(escrow_slot(word));
            return;
        }
    }
    throw Error(Code::refused, "host " + std::to_string(from) + " sent message " + std::to_string(message));
}

// At the home

void Coherence::request(const Request& request, u64 unit) {
    u64 word = medium_.word(self_, unit);
    if (home_state(word) == lent && owner_of(word) == request.host) unexpected("a request", request.host, unit, word);
    Turn& turn = turns_[unit];
    turn.queue.push_back(request);
    if (turn.queue.size() == 1) serve(unit);
}

void Coherence::serve(u64 unit) {
    Turn& turn = turns_[unit];
    for (; !turn.queue.empty(); turn.queue.pop_front()) {
        const Request request = turn.queue.front();
        if (request.host == NOBODY) continue;
        u64 word = medium_.word(self_, unit);
        u32 missing = 0;
        if (home_state(word) == lent) {
            if (owner_of(word) == request.host) continue;  // it asked twice
            missing = bit(owner_of(word));
        } else if (request.write) {
            missing = sharers_of(word) & ~bit(request.host);
        }
        if (missing) {
            turn.waiting = missing;
            for (u32 host = 0; host < hosts_; host++) {
                if (!(missing & bit(host)) || peers_[host].syncing) continue;  // a syncing one is told after HELD_END
                if (home_state(word) == lent) tell(host, m_recall, unit, request.write ? 0 : KEEP);
                else tell(host, m_inv, unit);
            }
            return;
        }
        grant(request, unit);
    }
    turns_.erase(unit);
}

void Coherence::grant(const Request& request, u64 unit) {
    u64 word = medium_.word(self_, unit);
    if (self(request.host)) {
        if (request.write && word != 0) medium_.set_word(self_, unit, 0);
        auto wanted = wants_[self_].find(unit);
        if (wanted != wants_[self_].end() && wanted->second <= (request.write ? 2 : 1)) wants_[self_].erase(wanted);
        return medium_.admit(self_, unit, request.write);
    }
    if (home_state(word) == at_home) medium_.protect(self_, unit);
    if (!request.write) {
        medium_.set_word(self_, unit, home_word(home_shared, 0, sharers_of(word) | bit(request.host)));
        return tell(request.host, m_datas, unit, 0, Source::own);
    }
    medium_.save(unit);
    medium_.set_word(self_, unit, home_word(lent, request.host, 0));
    medium_.punch(self_, unit);
    if (request.have && (sharers_of(word) & bit(request.host))) tell(request.host, m_grant, unit);
    else tell(request.host, m_datam, unit, 0, Source::shadow);
}

void Coherence::answered(u32 host, u64 unit) {
    auto found = turns_.find(unit);
    if (found == turns_.end() || !(found->second.waiting & bit(host))) return;
    found->second.waiting &= ~bit(host);
    if (!found->second.waiting) serve(unit);
}

void Coherence::take_back(u32 host, u64 unit, u32 flags, Body body) {
    u64 word = medium_.word(self_, unit);
    if (home_state(word) != lent || owner_of(word) != host) return tell(host, m_taken, unit);  // sent again, but it had arrived
    medium_.fill(self_, unit, body);
    medium_.set_word(self_, unit, flags & KEEP ? home_word(home_shared, 0, bit(host)) : 0);
    tell(host, m_taken, unit);
    medium_.drop_shadow(unit);
    answered(host, unit);
}

void Coherence::release_from(u32 host, u64 unit, u64 word, bool shares) {
    if (home_state(word) == lent) {
        medium_.restore(unit);
        medium_.set_word(self_, unit, shares ? home_word(home_shared, 0, bit(host)) : 0);
        medium_.drop_shadow(unit);
    } else {
        u32 left = sharers_of(word) & ~bit(host);
        medium_.set_word(self_, unit, left ? home_word(home_shared, 0, left) : 0);
    }
    answered(host, unit);
}

// At the borrower

void Coherence::granted(u32 home, u64 unit, Notice message, Body body) {
    u64 word = medium_.word(home, unit);
    if (copy_state(word) == escrow || (message == m_grant && copy_state(word) == invalid)) unexpected("a grant", home, unit, word);
    if (copy_state(word) == invalid) medium_.fill(home, unit, body);
    if (message != m_datas) medium_.set_word(home, unit, modified);
    else if (copy_state(word) == invalid) medium_.set_word(home, unit, shared);
    auto wanted = wants_[home].find(unit);
    if (wanted != wants_[home].end() && wanted->second <= (message == m_datas ? 1 : 2)) wants_[home].erase(wanted);
    medium_.admit(home, unit, message != m_datas);
}

void Coherence::invalidated(u32 home, u64 unit) {
    u64 word = medium_.word(home, unit);
    if (copy_state(word) == modified) unexpected("INV", home, unit, word);
    if (copy_state(word) == shared) {
        medium_.set_word(home, unit, invalid);
        medium_.punch(home, unit);
    }
    tell(home, m_invack, unit);
}

void Coherence::recalled(u32 home, u64 unit, u32 flags) {
    u64 word = medium_.word(home, unit);
    if (copy_state(word) == invalid) unexpected("RECALL", home, unit, word);
    if (copy_state(word) != modified) return;  // the answer is under way
    medium_.protect(home, unit);
    if (flags & KEEP) {
        medium_.set_word(home, unit, shared | DIRTY);
        return tell(home, m_back, unit, KEEP, Source::copy);
    }
    u32 slot;
    if (!medium_.take_slot(home, unit, slot)) {
        recalls_[home][unit] = flags;
        return;
    }
    medium_.set_word(home, unit, escrow_word(slot));
    medium_.punch(home, unit);
    tell(home, m_back, unit, 0, Source::slot, slot);
}

void Coherence::free_slot(u32 slot) {
    medium_.free_slot(slot);
    for (u32 home = 0; home < hosts_; home++) {  // one that waited for it
        if (recalls_[home].empty()) continue;
        auto [unit, flags] = *recalls_[home].begin();
        recalls_[home].erase(unit);
        return recalled(home, unit, flags);
    }
}

bool Coherence::evict(u32 home, u64 unit) {
    u64 word = medium_.word(home, unit);
    if (wants_[home].count(unit) || recalls_[home].count(unit) || (word & DIRTY) || copy_state(word) == escrow || !peers_[home].up) return false;
    if (copy_state(word) == shared) {
        medium_.set_word(home, unit, invalid);
        medium_.punch(home, unit);
    } else if (copy_state(word) == modified) {
        recalled(home, unit, 0);
        if (recalls_[home].erase(unit)) return false;  // no slot was free; nobody waits for this one
    }
    return true;
}

void Coherence::suspend(u32 home) {
    recalls_[home].clear();
    std::vector<std::pair<u64, u64>> words;
    medium_.each_word(home, [&](u64 unit, u64 word) { words.emplace_back(unit, word); });
    for (auto [unit, word] : words) {
        if (copy_state(word) == escrow) continue;
        bool written = copy_state(word) == modified || (word & DIRTY);
        if (written) medium_.protect(home, unit);
        u32 slot = 0;
        bool kept = written && medium_.take_slot(home, unit, slot);
        medium_.set_word(home, unit, kept ? escrow_word(slot) : u64(invalid));
        medium_.punch(home, unit);
        if (kept) tell(home, m_back, unit, 0, Source::slot, slot);
    }
}

// Hosts come and go

void Coherence::connected(u32 host) {
    Peer& peer = peers_[host];
    peer = {true, false, true, {}};
    std::vector<std::pair<u64, u64>> held;
    medium_.each_word(host, [&](u64 unit, u64 word) { held.emplace_back(unit, word); });
    for (auto [unit, word] : held) tell(host, m_held, unit, u32(word & 15));
    tell(host, m_held_end, 0);
    for (auto [unit, word] : held) {
        if (copy_state(word) == escrow) tell(host, m_back, unit, 0, Source::slot, escrow_slot(word));
        else if (word & DIRTY) tell(host, m_back, unit, KEEP, Source::copy);
    }
    for (auto [unit, wanted] : wants_[host]) ask(host, unit);
}

void Coherence::reconcile(u32 host) {
    Peer& peer = peers_[host];
    peer.syncing = false;
    std::map<u64, u64> held;
    held.swap(peer.held);
    std::vector<std::pair<u64, u64>> words;
    medium_.each_word(self_, [&](u64 unit, u64 word) { words.emplace_back(unit, word); });
    for (auto [unit, word] : words) {
        bool is_lent = home_state(word) == lent && owner_of(word) == host;
        bool is_shared = home_state(word) == home_shared && (sharers_of(word) & bit(host));
        if (!is_lent && !is_shared) continue;
        auto found = held.find(unit);
        u64 copy = found == held.end() ? u64(invalid) : found->second;
        if (found != held.end()) held.erase(found);
        bool has = is_lent ? copy_state(copy) == modified || copy_state(copy) == escrow || (copy & DIRTY) : copy_state(copy) == shared;
        if (!has) {
            release_from(host, unit, word, copy_state(copy) == shared);  // the GRANT did not arrive: it can read what was lent
            continue;
        }
        auto turn = turns_.find(unit);
        if (turn == turns_.end() || !(turn->second.waiting & bit(host))) continue;
        if (is_shared) tell(host, m_inv, unit);
        else if (copy_state(copy) == modified) tell(host, m_recall, unit, turn->second.queue.front().write ? 0 : KEEP);
    }
    for (auto [unit, copy] : held)  // what it has and should not
        if (copy_state(copy) != escrow && !(copy & DIRTY)) tell(host, m_drop, unit);
}

void Coherence::forget_requests(u32 host) {
    for (auto& [unit, turn] : turns_)
        for (Request& request : turn.queue)
            if (request.host == host) request.host = NOBODY;
}

void Coherence::disconnected(u32 host) {
    peers_[host].up = peers_[host].syncing = false;
    peers_[host].held.clear();
    recalls_[host].clear();
    forget_requests(host);
}

void Coherence::lost(u32 host) {
    disconnected(host);
    peers_[host].lost = true;
    std::vector<std::pair<u64, u64>> words;
    medium_.each_word(self_, [&](u64 unit, u64 word) { words.emplace_back(unit, word); });
    for (auto [unit, word] : words) {
        bool is_lent = home_state(word) == lent && owner_of(word) == host;
        bool is_shared = home_state(word) == home_shared && (sharers_of(word) & bit(host));
        if (is_lent || is_shared) release_from(host, unit, word);
    }
    suspend(host);
    Wants wants;
    wants.swap(wants_[host]);
    for (auto [unit, wanted] : wants) medium_.condemn(host, unit);
}

void Coherence::purge(u32 host) {
    recalls_[host].clear();
    std::vector<std::pair<u64, u64>> words;
    medium_.each_word(host, [&](u64 unit, u64 word) { words.emplace_back(unit, word); });
    for (auto [unit, word] : words) {
        medium_.set_word(host, unit, invalid);
        medium_.punch(host, unit);
        if (copy_state(word) == escrow) free_slot(escrow_slot(word));
    }
}

}  // namespace osf::coherence
