// A device that is played by the host's own memory: an arena that is taken once, and queues that copy into and out of it.
//
// One thread for each queue, so copies of one run in order and those of several overlap. What waits for another queue waits for a ticket
// that was given out before: tickets only look back, so queues cannot wait in a circle, and a queue that closes finishes what it has.
//
// fork: the threads stay with the parent, and so does the arena (MADV_DONTFORK: a copy of it would cost its size and be stale at once). In a
// child every call raises; what it inherited is left alone, locks that the parent's threads may have held included.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/base.hpp"

namespace osf::stream {

u64 fork_number();  // changes in a child: what has threads belongs to the process that made it

// Memory of the process's own, every page of it there before the first copy.
class DeviceArena {
public:
    explicit DeviceArena(u64 bytes);
    ~DeviceArena();
    DeviceArena(const DeviceArena&) = delete;
    DeviceArena& operator=(const DeviceArena&) = delete;
    char* data() const { return data_; }
    u64 bytes() const { return bytes_; }

private:
    void* mapping_;
    char* data_;
    const u64 bytes_;
    const u64 fork_;
};

// A place in a queue: done when everything up to it is.
class Ticket {
public:
    bool done() const { return done_.load(std::memory_order_acquire); }
    // False: the time is over (negative: never), or it was interrupted, which is asked every 100 ms.
    bool wait(long timeout_ns, const std::function<bool()>& interrupted = {});

private:
    friend class CopyQueue;
    struct Bell {                                  // of one queue; outlives it while somebody waits
        std::mutex mutex;
        std::condition_variable rung;
    };
    explicit Ticket(std::shared_ptr<Bell> bell);
    const std::shared_ptr<Bell> bell_;
    const u64 fork_;
    std::atomic<bool> done_{false};                // set with the bell's mutex held
};

class CopyQueue {
public:
    CopyQueue();
    ~CopyQueue();                                  // as close()
    CopyQueue(const CopyQueue&) = delete;
    CopyQueue& operator=(const CopyQueue&) = delete;

    // Both ranges stay the caller's, and must stay there, until the ticket is done. They must not overlap.
    std::shared_ptr<Ticket> copy(void* to, const void* from, u64 bytes);
    std::shared_ptr<Ticket> mark();                // done when everything before it is
    void after(std::shared_ptr<Ticket> other);     // what follows waits for it
    void close();                                  // finishes what it has, and takes no more

private:
    struct Work {
        void* to;
        const void* from;
        u64 bytes;
        std::shared_ptr<Ticket> first;             // to be waited for before
        std::shared_ptr<Ticket> ticket;
    };
    std::shared_ptr<Ticket> add(Work work);
    void run();

    struct State {                                 // left behind in a forked child
        std::mutex mutex;
        std::condition_variable more;
        std::deque<Work> works;
        bool closing = false;
        std::shared_ptr<Ticket::Bell> bell = std::make_shared<Ticket::Bell>();
        std::thread thread;
    };
    State* state_;
    const u64 fork_;
};

}  // namespace osf::stream
