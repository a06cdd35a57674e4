// Many small reads of flash at once, in the order that suits the disk: Linux's asynchronous reads (io_submit), which containers allow where
// they forbid io_uring. Where there are none, one read after the other. One thread's at a time. A queue is worth keeping: Linux takes some
// ten milliseconds to take one down. A forked child has to make its own.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "base/disk.hpp"

namespace osf::tiers {

class Reads {
public:
    struct One {
        File* file;
        u64 at, bytes;                        // whole sectors
    };
    // Which of the reads, and what was read; null: not all of it. The bytes are there until it returns.
    using Done = std::function<void(u64 number, const char* bytes)>;

    Reads();
    ~Reads();
    Reads(const Reads&) = delete;
    Reads& operator=(const Reads&) = delete;

    void run(std::span<const One> reads, const Done& done);  // returns when none is under way
    bool usable() const { return !broken_ && mine(); }

private:
    static constexpr u32 DEPTH = 128;
    bool mine() const;                        // no fork since it was made
    bool has_queue();                         // makes one if there is none
    char* place(u32 number) const { return memory_.get() + number * most_; }
    void make_room(u64 bytes);                // for each of those that are under way
    void one_by_one(std::span<const One> reads, u64 from, const Done& done);
    void queued(std::span<const One> reads, const Done& done);
    struct Free { void operator()(char* memory) const { std::free(memory); } };

    const pid_t maker_;
    u64 most_ = 0;
    std::unique_ptr<char, Free> memory_;      // DEPTH + 1 places
    unsigned long queue_ = 0;                 // aio_context_t; 0: none
    bool broken_ = false;                     // perhaps reads are still under way: not to be used again
};

}  // namespace osf::tiers
