// One space on one host, as the keeper sees it: the protocol's Medium over files, faults and wires. Everything here runs in
// the agent thread and never touches the memory it manages: bytes go through file descriptors, so a touch can always be answered.
//
// A unit that was just granted stays for HOLD before it is taken away, so that whoever touched it gets on: messages about it
// wait, in order. Between hosts a PING goes every BEAT. What is borrowed from a host may be used for LEASE after the sending of
// the last PING that it answered; the home takes lent units back LOST after it last heard of the borrower, which is later.
//
// Where the kernel maps what is in a file without asking (Abilities::minor), bytes are in the file only while processes of this host may
// read them, and every process has their pages marked before they are there, so a first write asks. A process that may not read what
// others of its host may has its range barred: then it asks for all.
//
// A new keeper does nothing before it is settled, that is, has every living process that its predecessor had: it could not
// write-protect the memory of the others.
#pragma once

#include <bitset>
#include <deque>
#include <memory>
#include <set>
#include <unordered_map>

#include "coherence/coherence.hpp"
#include "faults/faults.hpp"
#include "net/hello.hpp"
#include "faults/keeper_loop.hpp"
#include "net/roster.hpp"
#include "coherence/segments.hpp"
#include "space/space.hpp"
#include "net/wire.hpp"

namespace osf::coherence {

constexpr u64 HOLD_NS = 100 * MICRO, BEAT_NS = 300 * MILLI, LOST_NS = 2700 * MILLI;
constexpr u64 START_NS = 1500 * MILLI;     // that a keeper waits for a host which was silent before it started, or while it was stopped
constexpr u64 PAUSE_NS = 500 * MILLI;      // without running: it was stopped
constexpr u64 GRANULE = 32 * MIB;          // own bytes are registered for faults in such parts, when a first unit of one is lent

// The id of a frame about a unit: the unit, a page of it, and flags. The bytes of a unit go before their message, in pieces: the one
// side opens the first while the other seals the second, and the page that somebody waits for goes first.
constexpr u64 frame_id(u64 unit, u64 page, u32 flags) { return unit | page << 32 | u64(flags) << 56; }
constexpr u64 unit_of(u64 id) { return id & 0xffff'ffff; }
constexpr u64 page_of(u64 id) { return id >> 32 & 0xffff; }
constexpr u32 flags_of(u64 id) { return u32(id >> 56); }
constexpr u64 PIECE = 16 * KIB;            // at most

enum KeeperFrame : u16 { frame_sync = frame_first_keeper, frame_ping, frame_pong, frame_piece, frame_leave, frame_message };  // frame_message + Notice

struct Sync {                              // first on every connection, both ways
    u64 incarnation, session;              // session: under which the receiver borrows from the sender
    u32 unit, faults;
};

struct Waiting {                           // a touch of a unit
    bool map = false;                      // some of it is not mapped there
    bool barred = false;                   // though it is in the file: it can be shown only writable
};

struct Process {                           // of this host, attached
    Process() = default;
    ~Process();                            // closes faults, which nobody watches then
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;
    int socket = -1, faults = -1;          // the keeper itself has no socket
    Loop::Watch watch;                     // of faults
    u64 pid = 0;
    u32 place = ~0u;                       // Segments::take_place
    std::map<u32, u64> met;                // life_of each host when it got its first view of its bytes
    std::map<std::pair<u32, u64>, Waiting> waiting;    // touches of (home, unit)
    std::vector<std::pair<u32, u64>> strangers;        // touches of (home, address) of a host that never came yet
};

// The bytes of a message that are here before it.
struct Pieces {
    Notice message = m_gets;
    u64 unit = 0, bytes = 0;               // bytes: how many; 0: none
    std::vector<char> body;                // as long as the longest unit, once there was any
    std::bitset<UNIT_MAX / PAGE> pages;    // that are in it
    Process* early = nullptr;              // whose view has `shown` bytes of it already
    u64 shown = 0;
    void forget() { bytes = shown = 0, early = nullptr, pages.reset(); }
};

enum Leaving : u8 { leaving_ended, leaving_handed_over, leaving_closed };  // payload of frame_leave: why a keeper ends a connection

struct Link {                              // to another host's keeper
    std::string name;
    std::unique_ptr<Wire> wire;
    Loop::Watch watch;                     // of the wire, and gone before it
    std::string left;                      // not empty: why it left, as it said
    bool synced = false;                   // its Sync is here
    bool suspended = false;                // the lease has ended, and nothing that was borrowed is in use
    bool writing = false;                  // epoll is told to say when there is room
    bool faults = true;
    u64 term = 0;                          // of the host, under which it was made
    u64 adopted_ns = 0, pinged_ns = 0;
    u64 heard_ns = 0, listened_ns = 0;     // when it was last heard, and Node::listened_ns_ then
    u64 round_trip_ns = 0;
    Pieces pieces;
    std::map<u64, u64> first;              // page of a unit that it asked for: that one goes first
    u64 misses = 0, recalls = 0, invalidations = 0, bytes_in = 0, bytes_out = 0;
};

class Node : public Medium {
public:
    Node(Loop& loop, std::string name, std::shared_ptr<Space> space, std::shared_ptr<const Roster> roster, u32 self, u32 unit);

    const std::string& name() const { return name_; }
    const std::shared_ptr<Space>& space() const { return space_; }
    Segments& segments() { return segments_; }
    Link& link(u32 host) { return links_[host]; }
    u64 base() const { return base_; }
    u64 reserve() const { return space_->layout.reserve; }

    void begin();                          // once the functions below are set
    bool lends() const { return links_[self_].faults; }

    // Local processes
    bool settled() const { return settled_.load(); }   // any thread
    void attach(std::unique_ptr<Process> process);
    void detach(int socket);
    size_t processes() const { return processes_.size() - 1; }
    bool meet(int socket, u32 host, u64 incarnation);   // false: it is not there, in this life
    void prefetch(int socket, u64 id, u64 address, u64 bytes, bool write);

    // Other hosts
    void adopt(u32 host, u64 term, std::unique_ptr<Wire> wire);
    bool connected(u32 host) const { return connected_.load() >> host & 1; }   // any thread
    bool tick(u64 now);                    // time-outs and waiting messages; true: messages wait for their time
    void follow_roster();                  // connections under a term that is over are cut
    u64 epoch() const { return load(segments_.head().epoch); }                 // of the list that was last followed; any thread
    void leave();                          // gives back what is borrowed
    bool left();                           // and all of it has arrived
    void say_leaving(Leaving why);         // to the others, for their logs

    std::string status();                  // one line of text per host
    std::string owners(u64 address, u64 bytes) const;  // any thread: 8 bytes for each unit of the own segment

    std::function<void(int socket, u64 id, bool good)> prefetched;
    std::function<void(int socket, u64 address, u64 bytes)> lost;    // to be told the process: LostNote
    std::function<void(const std::string&)> log;

    // Medium
    u64 word(u32 home, u64 unit) override { return segments_.word(home, unit); }
    void set_word(u32 home, u64 unit, u64 value) override { segments_.set_word(home, unit, value); }
    void each_word(u32 home, const std::function<void(u64, u64)>& show) override { segments_.each_word(home, show); }
    void tidy(u32 home) override { segments_.tidy(home); }
    void protect(u32 home, u64 unit) override;
    void punch(u32 home, u64 unit) override { segments_.punch(home, unit); }
    void fill(u32 home, u64 unit, Body body) override;
    void save(u64 unit) override { segments_.save(unit); }
    void restore(u64 unit) override;
    void drop_shadow(u64 unit) override { segments_.drop_shadow(unit); }
    bool take_slot(u32 home, u64 unit, u32& slot) override;
    void free_slot(u32 slot) override { segments_.free_slot(slot); }
    void admit(u32 home, u64 unit, bool write) override;
    void condemn(u32 home, u64 unit) override;
    void send(u32 host, Notice message, u64 unit, u32 flags, Source source, u32 slot) override;

private:
    struct Held { u32 from; Notice message; u32 flags; std::string bytes; };
    struct Prefetch {
        int socket;
        u64 id;
        u32 home;
        u64 next, end, flying = 0;
        bool write, good = true;
    };
    using Place = std::pair<u32, u64>;     // home, unit

    void watch(Process& process);
    void faults_of(Process& process);
    void frames_of(u32 host);
    void drop_link(u32 host, const std::string& why);
    void ping(u32 host, u64 now);
    void settle();
    void end_lease(u32 host, u64 until_ns);
    void give_up(u32 host);
    bool locate(u64 address, Place& place) const;
    u64 address_of(u32 home, u64 unit) const { return base_ + home * reserve() + space_->layout.data_at + unit * segments_.unit_bytes(home); }
    void touched(Process& process, const Touch& touch);
    void resolve(Process& process, u32 home, u64 unit, const Waiting& is, bool write);
    bool provide(u64 unit);
    void lose(Process& process, u64 address, u64 bytes);
    void lose_stranger(Process& process, u32 home, u64 address);
    u64 segment_bytes() const { return space_->layout.heap[1].pages * PAGE; }
    void mark(u32 home, u64 unit);         // before its bytes are in the file, where that is needed
    void mark_held(Process& process, u32 home);
    void bar_stale(Process& process, u32 host);
    u64 life(u32 host) const { return life_of(segments_.head().seen[host], segments_.head().taken[host]); }
    bool of_this_life(Process& process, u32 home);
    void want_output(Link& link, bool want);
    void check(Process& process, int error);
    void register_own(u64 unit);
    int register_granule(Process& process, u64 granule);
    void control(u32 host, const FrameHead& head, const std::string& bytes);
    void take_piece(u32 host, const FrameHead& head);
    void show_early(Link& link, u32 home, u64 at, u64 bytes);
    void forget_pieces(u32 host);
    Process* only_waiter(u32 home, u64 unit);
    void send_bytes(Wire& wire, Notice message, u64 unit, std::span<const char> bytes, u64 first);
    void deliver(u32 from, Notice message, u64 unit, u32 flags, Body body);
    void keep(u32 from, Notice message, Place place, u32 flags, Body body);   // until its time
    void deliver_disordered(u32 from, Notice message, Place place, u32 flags, Body body);
    void receive(u32 from, Notice message, u64 unit, u32 flags, Body body);
    void synced(u32 host, const Sync& sync);
    void advance(const std::shared_ptr<Prefetch>& prefetch);
    void arrived(u32 home, u64 unit, bool write, bool good);
    void note_copy(u32 home, u64 unit);
    void make_room();

    Loop& loop_;
    std::string name_;
    std::shared_ptr<Space> space_;
    std::shared_ptr<const Roster> roster_;
    u32 self_;
    u64 base_;
    Segments segments_;
    Coherence coherence_;
    std::vector<Link> links_;
    std::vector<std::unique_ptr<Process>> processes_;   // [0]: the keeper itself
    std::set<u64> registered_;             // granules of the own segment
    u64 touched_page_ = 0;                 // of the unit that is being asked for
    std::map<Place, u64> holds_;           // until when
    std::map<Place, std::deque<Held>> waiting_;
    std::multimap<Place, std::shared_ptr<Prefetch>> prefetches_;
    std::deque<Place> copies_;             // in order of arrival, to evict from; each once
    std::set<Place> in_copies_;
    u64 copies_limit_ = 0;
    u64 started_ns_;
    std::vector<std::tuple<int, u64, u64, u64, bool>> early_;   // prefetches, until it is settled
    std::atomic<bool> settled_{false};
    u64 ticked_ns_ = 0, listened_ns_ = 0;  // for how long this keeper has run
    u32 awaited_ = ~0u;                    // the place last complained of
    u64 suspend_until_ns_ = ~u64(0), discarded_ = 0;
    std::atomic<u32> connected_{0};
    u32 broken_ = 0;                       // links that failed while sending
};

}  // namespace osf::coherence
