// What is asked for: in which order it is begun, what waits for what, and what is answered when.
//
// A request is in `requests_` until all of its units are begun or passed, and then in `begun_` until none of them is under way.
// For each unit that is under way it has a Waiter; `left` counts those and what was not begun. A touch is a Waiter without a
// request; if nothing is under way for its unit, a request of nobody's is made (id 0). Nobody is answered before his units were
// where they should be, all of them at some time, not all at once.
//
// Whoever did something with the mutex ends with dispatch(), or wake(): units that came to rest are looked at before anybody else
// can have it. With the engine's mutex, all of it.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tiers/client.hpp"
#include "engine/moment.hpp"
#include "engine/mover.hpp"
#include "engine/units.hpp"
#include "engine/viewers.hpp"
#include "engine/waiters.hpp"

namespace osf::engine {

constexpr int SOONEST = 1 << 30, AHEAD_PRIORITY = 1 << 29;  // of touches, and of reading ahead: before whatever processes ask for
constexpr const char* PINNED = "not_permitted:a part of it is pinned in dram; release the pins first, those of views in processes without faults among them";

struct Request {
    u64 sequence, id;
    u32 client;
    Want want;
    u32 first, last, next;               // units; from `next` on nothing was begun
    std::deque<UnitRange> more;          // and these
    u32 left;                            // units that are not where they should be yet
    u32 skip = NO_UNIT;                  // of reading ahead (struct Ahead)
    int priority;
    bool zeros = false, young = false;   // the same
    bool begun = false, looked = false;  // looked: whether those that it is refused for are alive
    std::string error;

    bool fills() const { return want != Want::demote && want != Want::discard && want != Want::flush; }
    bool shows(u32 from, u32 end) const { return want != Want::touch && !young && !(skip >= from && skip < end); }
};

class Queue {
public:
    Queue(Units& units, Viewers& viewers, Waiters& waiters, Mover& mover, Moment& moment);

    void attach(u32 client) { asked_[client]; }
    void detach(u32 client);                 // before its viewer goes
    void touch(u32 client, u32 unit, bool write, u64 since_ns);
    void ask(u32 client, u64 id, Want want, u64 address, u64 bytes, int priority);
    void ask_many(u32 client, u64 id, const std::vector<UnitRange>& ranges, int priority);
    void reorder(u32 client, u64 id, int priority);
    void cancel(u32 client, u64 id);
    void hold(bool on) { waits_ = on; }      // meanwhile nothing new is begun

    void dispatch();                         // begins what it can
    void wake();                             // who waits for units that came to rest goes on
    void catch_up();                         // both, if there is a reason
    bool idle() const { return requests_.empty() && mover_.idle(); }

    std::vector<Request*> take_flushes() { return std::exchange(flushes_, {}); }
    bool any_flushes() const { return !flushes_.empty(); }
    void flushed(const std::vector<Request*>& flushes, const std::string& error);

    std::condition_variable quiet;           // notified when nothing is under way

private:
    enum class Step { next, enough, blocked };   // to the next unit; enough is under way; it waits for what others may not need

    // engine/queue.cpp: from a request's coming to its answer
    Request* add(u32 client, u64 id, Want want, u32 first, u32 last, int priority);
    void ask_range(Viewer& viewer, u32 client, u64 id, Want want, u32 first, u32 last, int priority);
    std::string pin(Viewer& viewer, u64 id, u32 first, u32 last);   // why it cannot be; empty: it is
    std::string too_much(u64 units);         // why so many cannot be in memory at once; empty: they can
    void one_done(Request& request);
    void finish(Request& request);
    void stop(Request& request, const std::string& why);

    // engine/advance.cpp: what is begun for them
    void begin_requests();
    bool advance(Request& request);          // begins what it can; false: it waits for something that others may not need
    bool advance_fill(Request& request);
    bool advance_demote(Request& request);
    void advance_discard(Request& request);
    void pass_in_memory(Request& request);
    void pass(Request& request);             // its next unit is where it should be
    Step begin_fill(Request& request);
    Step find_room(Request& request, u64 most, u64& free);
    u32 alike(u32 unit, u64 most) const;     // units from this one on that one job can fill
    void demote_one(Request& request, std::vector<u32>& leaving);
    void begin_discard(Request& request);
    void wait_for(Request& request, u32 unit) { waiters_.add(unit, {&request, request.want, request.client, false, 0}); }
    void make_room(u64 wanted);
    void begin_runs(std::vector<u32>& units);

    // engine/touches.cpp: touches, and what units that came to rest mean for who waits for them
    void touch_there(Viewer& viewer, u32 client, u32 unit, Tier tier, bool write);
    u32 also_shown(Viewer& viewer, u32 unit, Tier tier, bool write);
    void read_ahead(Viewer& viewer, u32 client, u32 unit, bool missed);
    bool about_to_be_read(u32 client, u32 unit) const;
    void rested(u32 unit);
    void rested_for(Waiter& waiter, u32 unit);
    bool once_more(Waiter& waiter, u32 unit);
    void failed(u32 unit, const std::string& why, bool gone);

    Units& units_;
    Viewers& viewers_;
    Waiters& waiters_;
    Mover& mover_;
    Moment& moment_;
    std::map<u32, std::set<Request*>> asked_;                            // by each process
    std::map<std::pair<int, u64>, std::unique_ptr<Request>> requests_;   // in the order in which they are begun
    std::unordered_map<Request*, std::unique_ptr<Request>> begun_;       // all of it is begun, some of it under way
    std::vector<Request*> flushes_;                                      // of those, for the committer
    u64 sequence_ = 0;
    bool added_ = false, waits_ = false;
};

}  // namespace osf::engine
