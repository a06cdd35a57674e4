// Durable spaces: a commit is a moment of the whole space, written down.
//
// The moment: all stripes of the index are locked, then every dirty unit is write-protected, all under the engine's mutex. A write
// that is not in it waits until the moment is over, and so does whatever would follow from that write: what is committed is a
// state in which everybody could have been killed, and is recovered like one. (Processes without faults cannot be stopped: of
// what they write meanwhile, parts may be in it.) Then the units are written to slots that no commit refers to, synced, and the
// journal is told. Slots of the last commit are given back only after that.
//
// One thread makes commits, one at a time; the journal is its alone. What is in the journal: tiers/durable.hpp.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/disk.hpp"
#include "tiers/flash.hpp"
#include "tiers/journal.hpp"
#include "engine/moment.hpp"
#include "engine/mover.hpp"
#include "engine/queue.hpp"
#include "engine/slots.hpp"
#include "engine/units.hpp"
#include "engine/viewers.hpp"

namespace osf::engine {

class Committer {
public:
    Committer(Units& units, Viewers& viewers, Slots& slots, Moment& moment, Mover& mover, Queue& queue, Flash& flash, Disk& disk);
    ~Committer();                            // of a removed space nothing stays
    Committer(const Committer&) = delete;
    Committer& operator=(const Committer&) = delete;

    void run();                              // its thread, until stop()
    void stop();                             // without the mutex

private:
    // A copy of what is to be in the journal, but for pages of zeros
    struct Pages {
        std::vector<std::pair<u64, std::vector<char>>> list;
        void add(u64 number, const char* bytes, u64 size = PAGE);
    };
    void load_slots();                       // that the last commit refers to
    std::string commit();                    // what went wrong, or nothing
    void freeze();
    bool freeze_unit(u32 unit);              // true: it is to be written
    void copy_control(Pages& pages) const;
    void add_image(Pages& pages) const;
    std::string write_journal(const Pages& pages);
    void forget_journal();

    Units& units_;
    Viewers& viewers_;
    Slots& slots_;
    Moment& moment_;
    Mover& mover_;
    Queue& queue_;
    Flash& flash_;
    Journal journal_;
    bool stop_ = false;
};

}  // namespace osf::engine
