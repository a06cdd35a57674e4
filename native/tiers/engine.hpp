// The keeper's part of a space with a flash tier: moves units between memory and flash, answers touches, makes room.
//
// One mutex for everything that is decided; reads, writes and holes are made by threads of their own without it, on units that
// are theirs alone meanwhile (filling, writing, dropping, discarding in TierWord). Whoever wants such a unit waits for it
// by a Waiter. Nothing here waits for a process: a stopped or dead one delays nobody.
//
// Before a unit's bytes are written to flash it is write-protected in every process that has it mapped, and only then read; it
// leaves memory by a hole in the data file, which takes it out of all page tables at once; it comes back into the file before
// anybody's page table shows it. All processes' ranges are registered for MISSING, MINOR and WP faults, so what has no page
// table entry comes here first.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tiers/flash.hpp"
#include "space/space.hpp"
#include "tiers/client.hpp"
#include "tiers/policy.hpp"
#include "tiers/words.hpp"

namespace osf::tiers {

class Journal;

constexpr int SOONEST = 1 << 30, AHEAD_PRIORITY = 1 << 29;  // of touches, and of reading ahead: before whatever processes ask for

struct Descriptor {                          // closed when nobody uses it any more
    const int fd;
    explicit Descriptor(int opened) : fd(opened) {}
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
};

struct TierProcess {                         // as the engine sees it
    std::shared_ptr<Descriptor> faults;      // its userfaultfd; none: it holds what it uses by pins
    u32 member = 0;                          // its slot in the space
    u64 pid = 0;
    bool read_only = false;
    bool again = false;                      // an earlier keeper had it: anything may be mapped in it
    u32 pins_to_tell = 0;                    // that it has already and tells at once: until then nothing leaves memory
    std::function<bool()> alive;             // asked before anything is refused for its pins; none: it lives until it is detached
    std::function<void(u64 id, bool good, const std::string& text)> answer;
    // Take them out of its page tables, soon; with a ticket (not 0), and say so.
    std::function<void(const std::vector<u32>& units, u64 ticket)> arm;
};

class TierEngine {
public:
    TierEngine(std::shared_ptr<Space> space, Disk& disk, u32 threads = 8);
    ~TierEngine();
    TierEngine(const TierEngine&) = delete;
    TierEngine& operator=(const TierEngine&) = delete;

    u32 attach(TierProcess process);
    void detach(u32 client);
    void touch(u32 client, u64 address, bool write);
    // Answered when it is done, with the id. A pin lasts until unpin or the process's end.
    void ask(u32 client, u64 id, Want want, u64 address, u64 bytes, int priority);
    void ask_many(u32 client, u64 id, std::vector<UnitRange> ranges, int priority);  // to be prefetched, in this order
    void reorder(u32 client, u64 id, int priority);
    void cancel(u32 client, u64 id);         // answered as cancelled, unless it is done already
    void unpin(u32 client, u64 id);
    void armed(u32 client, u64 ticket);
    void hold(bool on);                      // meanwhile nothing new is begun: of several that are asked for at once the first is to be first
    bool settle();                           // every so often: whether all processes of the space are attached. True if so

    TierWords& words() { return words_; }
    void wait_idle();                        // tests: nothing is under way

private:
    struct Request {
        u64 sequence, id;
        u32 client;
        Want want;
        u32 first, last, next;               // units; from `next` on nothing was begun
        std::deque<UnitRange> more;          // and these
        u32 left;                            // units that are not where they should be yet
        u32 skip = NO_SLOT;                  // of reading ahead: stays out of the page tables, to notice when it is touched
        int priority;
        bool zeros = false, young = false;   // of reading ahead: also what is empty; and all of it stays out of the page tables
        bool begun = false, looked = false;  // looked: whether those that it is refused for are alive
        std::string error;
    };
    struct Waiter {
        Request* request;                    // or a touch:
        u32 client;
        bool write;
        u64 since_ns;
        u32 tries = 0;
    };
    struct Pinned { u32 first, last; bool plain; };
    struct Stream { u32 next = NO_SLOT, end = 0, first = 0; u64 used = 0; bool zeros = false; };  // next: the unit whose touch it expects to see
    struct Attached {
        TierProcess is;
        u64 bit = 0;
        std::map<u64, Pinned> pins;
        std::set<Request*> requests;
        std::vector<u32> arming;             // units that it is about to be told to take out of its page tables
        Stream streams[8];
    };
    struct Local {                           // what only this keeper knows of a unit
        u64 mapped = 0;                      // processes that may have it in their page tables
        u32 pins = 0, plain_pins = 0;        // the latter by who may write unseen: all but those who only read
        bool armed = false, drop = false;    // drop: leaves memory once it is written
        bool vacant = false;                 // on flash, but its pages are there still, of no meaning: the next fill needs no others
        bool stay = false;                   // leaves memory without its pages
        bool frozen = false;                 // what is written of it is part of a commit
        bool unsure = false;                 // dirty only because nobody would have noticed
        bool unseen = false;                 // a process without faults had it while it was written
        bool stale = false;                  // and before it was frozen: what is being written may lack what must be in the commit
    };
    // Units on their way out that leave their pages behind: they are flash when no page table shows them.
    struct Leaving { std::vector<u32> units; std::set<u32> clients; u64 since_ns; };
    enum class Kind { fill, provide, write, drop, discard, vacate };
    struct Job { Kind kind; u32 first, count; Request* request; u32 slot; bool vacant = false; };

    // tiers/engine.cpp: processes and touches; tiers/requests.cpp: what is asked for
    void recover();
    u32 unit_at(u64 address) const { return u32((address - data_at_) / UNIT); }
    u64 address_of(u32 unit) const { return data_at_ + u64(unit) * UNIT; }
    void set(u32 unit, u64 word);            // and the counts that follow from it
    void touch_unit(u32 client, u32 unit, bool write, u64 since_ns);
    void read_ahead(u32 client, u32 unit, bool missed);
    void show(u32 client, u32 first, u32 count, bool write);
    std::shared_ptr<Descriptor> shown_to(const Job& job);
    static void show_filled(const Descriptor& faults, u64 start, const Job& job);
    void poison(u32 client, u32 unit);
    Request* add(u32 client, u64 id, Want want, u32 first, u32 last, int priority);
    void one_done(Request& request);
    void finish(Request& request);
    void stop_request(Request& request, const std::string& why);
    std::string too_much(u64 units);   // why so many cannot be in memory at once; empty: they can
    bool drop_dead_pins();                   // true: there were some
    void dispatch();
    void begin_requests();
    bool advance(Request& request);          // begins what it can; false: it waits for room
    bool advance_fill(Request& request);
    bool advance_demote(Request& request);
    void advance_discard(Request& request);
    void stable(u32 unit);                   // it is where it is, for now: who waits for it goes on
    void set_vacant(u32 unit, bool is);
    void unpin_locked(Attached& client, u64 id);

    // tiers/moves.cpp
    bool unmovable(u32 unit) const;          // something that must always be in memory is there
    bool movable(u64 record, u64 page) const;
    bool unused(u32 unit) const;             // nothing is there
    void make_room(u64 wanted);
    bool protect(u32 unit);                  // in every process that may have it mapped; false: one could not be
    void failed(u32 unit, const std::string& why, bool gone);  // gone: its bytes are not in memory, and cannot be
    void left_memory(u32 unit);
    bool begin_leaving(u32 unit, std::vector<u32>& leaving);
    void begin_runs(std::vector<u32>& units);
    void begin(Job job);
    void work();
    void run(const Job& job, char* buffer);
    void fill(const Job& job, char* buffer);
    void provide(const Job& job);
    void write(const Job& job, char* buffer);
    void punch(u32 first, u32 count);
    bool local_stays(const Job& job);
    void hide(std::vector<u32> units);       // those that are dropping and leave their pages behind
    void hidden(Leaving& leaving);
    u64 room() const { return capacity_ > resident_ + vacant_ ? capacity_ - resident_ - vacant_ : 0; }
    u64 most_resident() const { return capacity_ - std::min(capacity_ / 2, low_water()); }
    u64 low_water() const { return std::max<u64>(4, std::min<u64>(capacity_ / 64, 4096)); }
    u32 take_slots(u32 unit, u32 count);     // NO_SLOT: none are free
    void free_slot(u32 slot);
    std::string names_at(u32 unit) const;

    // tiers/durable.cpp
    void load_image();
    void forget_journal();
    void advance_flush(Request& request);
    void flush_loop();
    std::string commit();                    // what went wrong, or nothing
    void freeze();
    void frozen_done(u32 unit, const TierWord& is, const std::string& error);
    void keep_slots(std::vector<u64> kept);
    bool short_of_slots() const { return durable_ && free_slots_ < capacity_ + 64; }

    std::shared_ptr<Space> space_;
    TierWords words_;
    Flash flash_;
    Disk& disk_;
    u64 data_at_, units_, capacity_;
    int data_ = -1;
    const bool durable_, watches_;           // the latter: that uses are noticed; off only to measure what that costs

    mutable std::mutex mutex_;
    std::condition_variable work_, idle_;
    std::vector<Local> local_;
    std::map<u32, Attached> clients_;
    u32 next_client_ = 0;
    u64 sequence_ = 0;
    std::map<std::pair<int, u64>, std::unique_ptr<Request>> requests_;   // in the order in which they are begun
    std::unordered_map<Request*, std::unique_ptr<Request>> begun_;       // all of it is begun, some of it under way
    std::unordered_map<u32, std::vector<Waiter>> waiters_;
    std::deque<Job> jobs_;
    u32 running_ = 0;
    u64 resident_ = 0, evicting_ = 0, pinned_ = 0, vacant_ = 0;
    std::set<u32> vacants_;
    std::map<u64, Leaving> leaving_;
    u32 plain_ = 0;                          // processes without faults
    u64 failed_ns_ = 0;                      // when flash last refused a write
    bool settled_ = false, stop_ = false, added_ = false, held_ = false;
    TierPolicy policy_;
    std::vector<u64> slots_;                 // bits: taken
    u64 slot_hint_ = 0;
    std::unique_ptr<Journal> journal_;
    // Durable: what is being committed, and slots that must not be written over: of the last commit, and of that.
    std::vector<TierWord> image_;
    std::vector<u64> kept_, kept_next_;
    u64 frozen_left_ = 0, free_slots_ = 0;
    std::string frozen_error_;
    std::vector<Request*> flushes_;
    bool flush_wanted_ = false;
    std::condition_variable flush_, frozen_;
    std::vector<std::thread> threads_;
};

}  // namespace osf::tiers
