// The keeper's part of a space with a flash tier: moves units between memory and flash, answers touches, makes room.
//
// What is here only takes the mutex, and owns the parts and their threads. Each part knows those before it, none after it:
//
//   units      what is known of each unit, and the mutex (engine/units.hpp)
//   viewers    processes, their page tables and pins (engine/viewers.hpp)
//   waiters    who waits for which unit (engine/waiters.hpp)
//   slots      of flash, taken and free (engine/slots.hpp)
//   moment     that is being committed (engine/moment.hpp)
//   mover      reads, writes and drops units; chooses who leaves (engine/mover.hpp)
//   queue      what is asked for, and touches (engine/queue.hpp)
//   committer  of a durable space (engine/committer.hpp)
//
// Nothing here waits for a process: a stopped or dead one delays nobody.
#pragma once

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "engine/committer.hpp"
#include "tiers/flash.hpp"
#include "engine/mover.hpp"
#include "engine/queue.hpp"
#include "engine/viewers.hpp"

namespace osf::engine {

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

    TierWords& words() { return units_.words; }
    void wait_idle();                        // tests: nothing is under way

private:
    void work();

    Units units_;
    Flash flash_;
    Viewers viewers_;
    Waiters waiters_;
    Slots slots_;
    Moment moment_;
    Mover mover_;
    Queue queue_;
    std::optional<Committer> committer_;     // of a durable space
    std::vector<std::thread> threads_;
};

}  // namespace osf::engine
