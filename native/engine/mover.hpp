// What is done: units read, written, dropped, given memory; and which of them leave when memory is full.
//
// Before a unit's bytes are written to flash it is write-protected in every process that has it mapped, and only then read; it
// leaves memory by a hole in the data file, which takes it out of all page tables at once; it comes back into the file before
// anybody's page table shows it (without MINOR: as soon as it is there, marked).
//
// A unit of a job is that job's alone: its word says filling, writing, dropping or discarding from the moment that the job is begun
// until it has ended, and only who ends it changes that word. What became of a unit is told the waiters; a unit on its way out is
// counted in Units::evicting. With the engine's mutex, all of it; run() lets go of it while bytes move.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tiers/client.hpp"
#include "tiers/flash.hpp"
#include "engine/moment.hpp"
#include "engine/slots.hpp"
#include "engine/units.hpp"
#include "engine/viewers.hpp"
#include "engine/waiters.hpp"

namespace osf::engine {

struct Job {
    enum class Kind { fill, provide, write, drop, discard, vacate };
    Kind kind;
    u32 first, count;                        // units
    u32 slot = NO_SLOT;                      // of the first of them; the others' follow
    bool vacant = false;                     // to be filled, and their pages are there already
    // For whom units come into memory:
    Want want = Want::demote;                // or for nobody: they leave
    u32 client = NO_CLIENT;
    u32 skip = NO_UNIT;                      // stays out of the page tables
    bool young = false;                      // all of it does

    u32 end() const { return first + count; }
    bool has(u32 unit) const { return unit >= first && unit < end(); }
};

class Mover {
public:
    Mover(Units& units, Viewers& viewers, Waiters& waiters, Slots& slots, Moment& moment, Flash& flash);

    // What there is to be done
    void begin(const Job& job);
    void hasten(u32 unit);                   // its job is the next one
    void forget_slot(u32 unit);              // it is empty from now on
    u64 under_way() const { return jobs_.size() + running_; }
    bool idle() const { return !under_way() && leaving_.empty(); }

    // Units that leave. Those that are to be written are collected first: neighbours go together.
    void make_room(u64 wanted);              // sees to it that `wanted` units and some more are free, or soon will be
    bool begin_leaving(u32 unit, std::vector<u32>& leaving);  // false: it cannot
    void begin_runs(std::vector<u32>& units);
    bool armed(u32 client, u64 ticket);      // it no longer shows what it was told to. True: that made units leave
    void detached(u32 client);
    void hide_from_stopped();                // a process that is stopped does not answer: its page tables are emptied for it

    // For the threads that do it
    struct Worker {
        Worker();
        ~Worker();
        Worker(const Worker&) = delete;
        Worker& operator=(const Worker&) = delete;
        char* const buffer;                  // for RUN units
        Job job{};
        std::vector<u32> drops;              // units of the job that are written, and leave memory next
    };
    bool next(Worker& worker, std::unique_lock<std::mutex>& lock);  // waits for a job; false: it is over
    bool run(Worker& worker, std::unique_lock<std::mutex>& lock);   // true: more of it is to be done, after the waiters were told
    void done() { running_--; }
    void stop();                             // without the mutex

private:
    // Units on their way out that leave their pages behind: they are flash when no page table shows them.
    struct Leaving { std::vector<u32> units; std::set<u32> clients; u64 since_ns; };
    struct Reading { u32 count; std::string errors[RUN] = {}; bool whole() const; };
    struct Writing { const char* from = nullptr; bool copied = false, same = true; TierWord next[RUN]; std::string error; };

    // engine/mover.cpp
    void begin_vacating(u64 goal, u64 most);
    void begin_one_leaving(u32 unit, std::vector<u32>& leaving);
    void no_slot_for(u32 unit);
    void kept(u32 unit);                     // it was on its way out, and stays
    bool hide(const Job& job);               // if they leave their pages behind
    void hidden(const Leaving& leaving);
    void left_memory(u32 unit);

    // engine/moves.cpp
    void fill(const Job& job, char* buffer, std::unique_lock<std::mutex>& lock);
    void read_checked(const Job& job, char* buffer, Reading& reading);
    void put_in_file(const Job& job, const char* buffer, Reading& reading);
    void show_filled(const Job& job, std::unique_lock<std::mutex>& lock);
    void filled(const Job& job, const Reading& reading);
    void provide(const Job& job, std::unique_lock<std::mutex>& lock);
    void write(Worker& worker, std::unique_lock<std::mutex>& lock);
    void write_out(const Job& job, char* buffer, Writing& writing);
    void written(const Job& job, u32 at, const Writing& writing, std::vector<u32>& drops);
    Tier after_write(u32 unit, const Writing& writing, bool drop);
    void forget(const Job& job, std::unique_lock<std::mutex>& lock);
    void fails(u32 unit, const std::string& why, bool gone);

    Units& units_;
    Viewers& viewers_;
    Waiters& waiters_;
    Slots& slots_;
    Moment& moment_;
    Flash& flash_;
    const bool watches_;                     // uses are noticed; not without MINOR, and to measure what that costs
    std::condition_variable work_;
    std::deque<Job> jobs_;
    u32 running_ = 0;
    std::map<u64, Leaving> leaving_;         // by ticket
    u64 tickets_ = 0;
    bool stop_ = false;
};

}  // namespace osf::engine
