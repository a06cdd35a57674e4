// Processes that have the space open, as its keeper sees them: what their page tables may show, and what they have pinned.
//
// All processes' ranges are registered for MISSING, MINOR and WP faults, so what has no page table entry comes to the keeper first.
// Local::mapped says in whose page tables a unit may be: bits are set before it is shown, and cleared only when it left memory.
//
// Where the kernel has no way to show a page that is not writable (Abilities::minor), it shows what is in the file by itself. Then a unit
// may be in the page tables of all processes, none can be watched, and none leaves its pages behind; it is marked in every process before
// its bytes are in the file (mark), so the first write of what is not dirty is seen all the same.
//
// Nothing here waits for a process: a stopped or dead one delays nobody.
//
// With the engine's mutex, all of it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/streams.hpp"
#include "engine/units.hpp"

namespace osf::engine {

struct TierProcess {                         // as the engine sees it
    std::shared_ptr<Descriptor> faults;      // its userfaultfd; none: it has what it uses by pins
    u32 member = 0;                          // its number among the members of the space
    u64 pid = 0;
    bool read_only = false;
    bool again = false;                      // an earlier keeper had it: anything may be mapped in it
    u32 pins_to_tell = 0;                    // that it has already and tells at once: until then nothing leaves memory
    std::function<bool()> alive;             // asked before anything is refused for its pins; none: it lives until it is detached
    std::function<void(u64 id, bool good, const std::string& text)> answer;
    // Take them out of its page tables, soon; with a ticket (not 0), and say so.
    std::function<void(const std::vector<u32>& units, u64 ticket)> arm;
    std::function<void(u64 address, u64 bytes)> lose;    // touches there end it; where the kernel cannot do it for the keeper
};

struct Viewer {
    struct Pinned { u32 first, last; bool plain; };
    TierProcess is;
    u64 bit = 0;                             // in Local::mapped; another's too, if they are more than 64
    std::map<u64, Pinned> pins;
    std::vector<u32> arming;                 // units that it is about to be told to take out of its page tables
    Streams streams;
};

class Viewers {
public:
    explicit Viewers(Units& units) : units_(units) {}

    u32 attach(TierProcess process);         // throws if it cannot be kept from writing unseen
    void detach(u32 client);                 // with its pins
    Viewer* find(u32 client);                // or null
    Viewer& at(u32 client) { return all_.at(client); }
    bool plain() const { return plain_ > 0; }       // some are without faults, and write unseen
    bool settled() const { return settled_; }       // all processes of the space are attached: what they use is known, units may leave memory
    bool settle();                           // looks whether they are, and says whether that is new

    // Into the page tables of a process, as far as they are in memory: writable where they are dirty. `write`: make them so.
    void show(Viewer& viewer, u32 first, u32 count, bool write);
    void show(u32 client, u32 first, u32 count) { if (Viewer* viewer = find(client)) show(*viewer, first, count, false); }
    // That units which are being filled will be in its page tables, all but one: it is shown them without the mutex. Null: it has no faults.
    std::shared_ptr<Descriptor> will_see(u32 client, u32 first, u32 count, u32 skip);
    bool protect(u32 unit);                  // in every process that may have it mapped; false: one could not be
    bool mark(u32 first, u32 count);         // before their bytes are in the file, in every process; false: one could not be. Nothing, with MINOR
    void poison(u32 client, u32 unit);       // whoever touches it there hears of it
    void watch(u32 unit);                    // the next touch is to be seen: by tell_watched, who has it mapped
    void tell_watched();                     // many at a time: each time costs the process more than each unit
    std::vector<u32> mapping(const std::vector<u32>& units) const;  // processes with faults that may have some of them mapped

    void pin(Viewer& viewer, u64 id, u32 first, u32 last);
    void unpin(Viewer& viewer, u64 id);
    void unpin_all(Viewer& viewer);
    bool drop_dead_pins();                   // true: there were some

private:
    bool all_attached() const;
    bool mark_all(const Viewer& viewer) const;

    Units& units_;
    std::map<u32, Viewer> all_;
    u32 next_ = 0;
    u32 plain_ = 0;
    bool settled_ = false;
};

}  // namespace osf::engine
