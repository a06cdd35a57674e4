// Many small reads of flash at once, in the order that suits the disk: Linux's asynchronous reads (io_submit), which containers allow where
// they forbid io_uring. Where there are none, one read after the other. One thread's, for one call: a fork in another thread ends it.
#pragma once

#include <span>

#include "base/disk.hpp"

namespace osf::tiers {

class Reads {
public:
    struct One {
        File* file;
        u64 at, bytes;                        // whole sectors
        char* to;                             // at a multiple of a sector
        bool done = false;
    };
    Reads() = default;
    ~Reads();
    Reads(const Reads&) = delete;
    Reads& operator=(const Reads&) = delete;

    void run(std::span<One> reads);           // `done` of those that were read whole; returns when none is under way

private:
    static constexpr u32 DEPTH = 128;
    void queued(std::span<One> reads);
    bool tried_ = false;
    unsigned long queue_ = 0;                 // aio_context_t; 0: none
};

}  // namespace osf::tiers
