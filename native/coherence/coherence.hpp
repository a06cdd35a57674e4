// The protocol that keeps the copies of a unit on several hosts equal: MSI with a directory at the home. State and
// decisions only; what is done to memory, files and wires goes through a Medium. So the same code runs in the keeper and,
// exhaustively, in the model checker (tests/coherence/model_test.cpp), which kills keepers between any two calls of the Medium.
//
// A unit has one durable word on each host (it survives the keeper, like all of the host's memory):
//   at the home    HOME no copies elsewhere | SHARED with a set of hosts, nobody writes | LENT to one host that may write
//   at a borrower  INVALID | SHARED | MODIFIED | ESCROW: given back, a copy is kept in a slot until the home has it
//                  SHARED|DIRTY: may be read here, the home does not have these bytes yet
// While a unit is lent the home keeps what it lent (the shadow): a borrower that is lost takes only its own writes with it.
//
// Messages about one unit between two hosts arrive in order. To the home: GETS, GETM (flag HAVE: a shared copy is here),
// INVACK, BACK (bytes; flag KEEP: stays shared). From the home: DATAS, DATAM (bytes), GRANT (may write what it has), INV,
// RECALL (flag KEEP: stay shared), TAKEN (the bytes of BACK are safe). After a connection is made: HELD for each unit that
// the sender borrowed from the receiver, HELD_END, then what was unanswered again; DROP: not yours any more.
//
// Every request is decided at the home, one after the other for each unit. The order of steps is what makes it safe:
// before a word admits more than before, the bytes are in place; before it admits less, nobody can use more.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "base/base.hpp"

namespace osf::coherence {

enum Notice : u16 { m_gets, m_getm, m_invack, m_back, m_datas, m_datam, m_grant, m_inv, m_recall, m_taken, m_held, m_held_end, m_drop };
constexpr u32 HAVE = 1, KEEP = 1;

enum HomeState : u64 { at_home, home_shared, lent };
enum CopyState : u64 { invalid, shared, modified, escrow };
constexpr u64 DIRTY = 1 << 3;
constexpr u32 MAX_HOSTS = 32;

constexpr u64 home_word(HomeState state, u32 owner, u32 sharers) { return u64(state) | u64(owner) << 8 | u64(sharers) << 32; }
constexpr HomeState home_state(u64 word) { return HomeState(word & 3); }
constexpr u32 owner_of(u64 word) { return u32(word >> 8 & 255); }
constexpr u32 sharers_of(u64 word) { return u32(word >> 32); }
constexpr CopyState copy_state(u64 word) { return CopyState(word & 3); }
constexpr u64 escrow_word(u32 slot) { return u64(escrow) | u64(slot) << 8; }
constexpr u32 escrow_slot(u64 word) { return u32(word >> 8 & 0xffffff); }

using Body = std::span<const char>;        // the bytes that came with a message; empty: none. They are there while it is received

enum class Source { none, own, shadow, copy, slot };  // whose bytes a message carries

struct Medium {
    virtual ~Medium() = default;
    // Units of this host's own segment have home == self.
    virtual u64 word(u32 home, u64 unit) = 0;
    virtual void set_word(u32 home, u64 unit, u64 value) = 0;
    virtual void each_word(u32 home, const std::function<void(u64 unit, u64 word)>& show) = 0;  // those that are not zero
    // After a kill: units that this host does not hold by their words have no bytes here, and no shadow unless lent;
    // slots that no word names are free.
    virtual void tidy(u32 home) = 0;
    virtual void protect(u32 home, u64 unit) = 0;          // afterwards no local process can write it without a fault
    virtual void punch(u32 home, u64 unit) = 0;            // afterwards every local touch faults
    virtual void fill(u32 home, u64 unit, Body body) = 0;
    virtual void save(u64 unit) = 0;                       // own bytes to the shadow
    virtual void restore(u64 unit) = 0;                    // the shadow to the own bytes
    virtual void drop_shadow(u64 unit) = 0;
    virtual bool take_slot(u32 home, u64 unit, u32& slot) = 0;  // copies the unit there; false: none is free now
    virtual void free_slot(u32 slot) = 0;
    virtual void admit(u32 home, u64 unit, bool write) = 0;     // local touches that wait may go on
    virtual void condemn(u32 home, u64 unit) = 0;               // they never can
    virtual void send(u32 host, Notice notice, u64 unit, u32 flags, Source source, u32 slot) = 0;
};

class Coherence {
public:
    Coherence(Medium& medium, u32 self, u32 hosts);

    void start();                          // after a keeper was killed: what its words say is made true again
    void want(u32 home, u64 unit, bool write);   // a local touch, or a prefetch
    bool may(u32 home, u64 unit, bool write);    // without asking anybody
    void receive(u32 from, Notice notice, u64 unit, u32 flags, Body body);
    bool evict(u32 home, u64 unit);        // a copy that nobody waits for goes back; false: not now

    void connected(u32 host);              // the words of both sides are from the same lives
    void disconnected(u32 host);           // it may come back as it was
    void suspend(u32 host);                // what is borrowed from it cannot be used any more; what was written is kept, to be given back
    void lost(u32 host);                   // it is given up: its copies count no more, who waits for its bytes has lost them
    void purge(u32 host);                  // it has given up this host, or died: what was borrowed from it is void
    bool up(u32 host) const { return peers_[host].up; }
    bool is_lost(u32 host) const { return peers_[host].lost; }

protected:  // all that a killed keeper forgets: the model checker takes it apart and puts it together
    struct Request { u32 host; bool write, have; };
    struct Turn {                          // the request on a unit that is being served, and those that wait
        u32 waiting = 0;                   // hosts whose answer is missing
        std::deque<Request> queue;         // front: being served
    };
    struct Peer {
        bool up = false, lost = false, syncing = false;
        std::map<u64, u64> held;           // while syncing: what it says it has of ours
    };
    using Wants = std::map<u64, u8>;       // 1 read, 2 write: asked for and not answered

    bool self(u32 host) const { return host == self_; }
    void request(const Request& request, u64 unit);
    void serve(u64 unit);
    void grant(const Request& request, u64 unit);
    void answered(u32 host, u64 unit);
    void take_back(u32 host, u64 unit, u32 flags, Body body);
    void recalled(u32 home, u64 unit, u32 flags);
    void granted(u32 home, u64 unit, Notice notice, Body body);
    void invalidated(u32 home, u64 unit);
    void ask(u32 home, u64 unit);
    void free_slot(u32 slot);
    void reconcile(u32 host);
    void forget_requests(u32 host);
    void release_from(u32 host, u64 unit, u64 word, bool shares = false);   // the host did not write it: it has nothing, or a copy
    void tell(u32 host, Notice notice, u64 unit, u32 flags = 0, Source source = Source::none, u32 slot = 0);

    Medium& medium_;
    u32 self_, hosts_;
    std::vector<Peer> peers_;
    std::map<u64, Turn> turns_;            // of own units
    std::vector<Wants> wants_;             // by home
    std::vector<std::map<u64, u32>> recalls_;  // by home: RECALLs that wait for a free slot
};

}  // namespace osf::coherence
