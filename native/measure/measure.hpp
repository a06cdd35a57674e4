// What this machine's memory and loopback do, measured with plain loops.
//
// Every kernel works on memory that the caller names, so a private array and a shared mapping can be
// compared by the same loop. Kernels return raw times in seconds, one per repetition; what is typical
// (median) or possible (minimum) is the caller's choice. Not here: disk (large blocks: the interpreter's own
// preadv is as fast) and GEMM (numpy's).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/rooms.hpp"

namespace osf::measure {

constexpr std::size_t line_bytes = 64;

// Anonymous memory with a wanted page size (2 MiB, or the system's own: 0), touched once so that no kernel pays for first faults.
// The kernel may refuse huge pages silently: huge_bytes() says what was really given.
class Pages {
  public:
    Pages(std::size_t nbytes, std::size_t page_bytes);
    ~Pages();
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    std::byte* data() const { return data_; }
    std::size_t nbytes() const { return nbytes_; }
    std::size_t huge_bytes() const;

  private:
    void* mapping_ = nullptr;
    std::size_t mapping_bytes_ = 0;
    std::byte* data_ = nullptr;
    std::size_t nbytes_ = 0;
};

// The sum of all 8-byte words, then of the bytes left over; returned so that no load can be optimised away.
std::uint64_t stream_read(const std::byte* data, std::size_t nbytes);

// Seconds of each pass over the whole range by `threads` threads, each with its own contiguous share.
std::vector<double> time_reads(const std::byte* data, std::size_t nbytes, unsigned threads, unsigned repetitions);
std::vector<double> time_writes(std::byte* data, std::size_t nbytes, unsigned threads, unsigned repetitions);
std::vector<double> time_copies(std::byte* target, const std::byte* source, std::size_t nbytes, unsigned threads,
                                unsigned repetitions);

// Overwrites the first 8 bytes of each line with a pointer to another, so that all lines form one cycle in
// random order (Sattolo): a chase meets every line before it meets one twice, and no prefetcher can guess.
void chain_lines(std::byte* data, std::size_t nbytes, std::uint64_t seed);

struct Chase {
    double seconds;
    const std::byte* end;  // the line it stopped at: start the next chase there, or it meets lines still in a cache
};

// `count` dependent loads along a chain made by chain_lines, from any of its lines.
Chase chase(const std::byte* line, std::uint64_t count);

// Seconds for `count` 8-byte loads at random lines of a range, whose content is neither used nor changed.
// Independent: the processor may have many in flight. Dependent: each address waits for the load before it.
double random_loads(const std::byte* data, std::size_t nbytes, std::uint64_t count, std::uint64_t seed,
                    bool dependent);

struct LoadedLatency {
    double load_bytes_per_s;  // what the other threads really streamed meanwhile
    double latency_s;         // one dependent load
    const std::byte* end;     // of the chase
};

// A chase of `count` loads while `threads` other threads stream `data`, each busy for `duty` (0 to 1) of its
// time. Wants threads + 1 free cores: with fewer it measures the scheduler.
LoadedLatency loaded_latency(const std::byte* line, std::uint64_t count, const std::byte* data, std::size_t nbytes,
                             unsigned threads, double duty);

// Loopback TCP between two threads with blocking sockets: seconds of each round trip of `nbytes`.
std::vector<double> loopback_round_trips(std::size_t nbytes, unsigned repetitions);

// Seconds to send `nbytes` in `chunk_bytes` pieces until the receiver has acknowledged the last one.
double loopback_stream(std::size_t nbytes, std::size_t chunk_bytes);

// A bare request and reply between two processes over any connected TCP socket. serve_replies answers from its range
// until the asker hangs up; time_replies gives the seconds of each reply of `nbytes` into `data`, in calls of at most
// `chunk`. Both sides spin up to `spin_us` before they block.
void serve_replies(int fd, const std::byte* data, std::size_t nbytes);
std::vector<double> time_replies(int fd, std::byte* data, std::size_t nbytes, std::size_t chunk, unsigned repetitions,
                                 unsigned spin_us);

}  // namespace osf::measure
