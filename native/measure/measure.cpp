// The memory kernels of measure/measure.hpp. Loops are plain C++: at sizes beyond the caches the memory, not the
// instruction set, sets the pace, so nothing here is tuned for one processor.
#include "measure/measure.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <thread>

namespace osf::measure {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

// splitmix64: one add and a few multiplications, good enough to defeat prefetchers and cheap next to a miss.
std::uint64_t mix(std::uint64_t& state) {
    std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// A number in [0, limit) without a division, which would cost as much as a cache hit.
std::uint64_t below(std::uint64_t random, std::uint64_t limit) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(random) * limit) >> 64);
}

// Makes the compiler believe that the value is used, at no cost in the measured loop.
template <typename T>
void keep(const T& value) {
    asm volatile("" : : "r"(value) : "memory");
}

// The share of thread `index`, in whole lines except for the last thread's tail.
struct Share {
    std::size_t offset;
    std::size_t nbytes;
};

Share share_of(std::size_t nbytes, unsigned threads, unsigned index) {
    const std::size_t each = nbytes / threads / line_bytes * line_bytes;
    const std::size_t offset = each * index;
    return {offset, index + 1 == threads ? nbytes - offset : each};
}

// Runs body(share) on every thread, `repetitions` times, and times each pass from the moment that all threads
// are at the start line to the moment that the last has finished. Threads spin at the line: waking them
// through the kernel would be counted in the pass.
std::vector<double> time_passes(std::size_t nbytes, unsigned threads, unsigned repetitions,
                                const std::function<void(Share)>& body) {
    require(nbytes >= line_bytes, "a range of at least 64 bytes is needed");
    require(threads >= 1 && repetitions >= 1, "at least one thread and one repetition are needed");
    std::atomic<unsigned> pass{0}, done{0};
    std::vector<std::jthread> workers;
    for (unsigned index = 1; index < threads; ++index) {
        workers.emplace_back([&, index] {
            for (unsigned mine = 1; mine <= repetitions; ++mine) {
                done.fetch_add(1, std::memory_order_release);
                while (pass.load(std::memory_order_acquire) < mine) std::this_thread::yield();
                body(share_of(nbytes, threads, index));
            }
            done.fetch_add(1, std::memory_order_release);
        });
    }
    // Worker k has reported (k finished passes + 1) times when it is ready for pass k + 1.
    auto wait_for_all = [&](unsigned reports) {
        while (done.load(std::memory_order_acquire) < reports * (threads - 1)) std::this_thread::yield();
    };
    std::vector<double> times;
    for (unsigned mine = 1; mine <= repetitions; ++mine) {
        wait_for_all(mine);
        const auto start = Clock::now();
        pass.store(mine, std::memory_order_release);
        body(share_of(nbytes, threads, 0));
        wait_for_all(mine + 1);
        times.push_back(seconds_since(start));
    }
    return times;
}

}  // namespace

std::uint64_t stream_read(const std::byte* data, std::size_t nbytes) {
    // Eight sums, so that an add's latency does not limit the loads.
    std::uint64_t sums[8] = {};
    std::size_t at = 0;
    for (; at + line_bytes <= nbytes; at += line_bytes) {
        std::uint64_t words[8];
        std::memcpy(words, data + at, line_bytes);
        for (int i = 0; i < 8; ++i) sums[i] += words[i];
    }
    std::uint64_t total = std::accumulate(sums, sums + 8, std::uint64_t{0});
    for (; at + 8 <= nbytes; at += 8) {
        std::uint64_t word;
        std::memcpy(&word, data + at, 8);
        total += word;
    }
    for (; at < nbytes; ++at) total += std::to_integer<std::uint64_t>(data[at]);
    return total;
}

std::vector<double> time_reads(const std::byte* data, std::size_t nbytes, unsigned threads, unsigned repetitions) {
    return time_passes(nbytes, threads, repetitions,
                       [=](Share share) { keep(stream_read(data + share.offset, share.nbytes)); });
}

std::vector<double> time_writes(std::byte* data, std::size_t nbytes, unsigned threads, unsigned repetitions) {
    return time_passes(nbytes, threads, repetitions, [=](Share share) {
        std::memset(data + share.offset, 0x5a, share.nbytes);
        keep(data);
    });
}

std::vector<double> time_copies(std::byte* target, const std::byte* source, std::size_t nbytes, unsigned threads,
                                unsigned repetitions) {
    return time_passes(nbytes, threads, repetitions, [=](Share share) {
        std::memcpy(target + share.offset, source + share.offset, share.nbytes);
        keep(target);
    });
}

void chain_lines(std::byte* data, std::size_t nbytes, std::uint64_t seed) {
    const std::size_t lines = nbytes / line_bytes;
    require(lines >= 2, "a chain needs at least two lines (128 bytes)");
    require(lines <= std::numeric_limits<std::uint32_t>::max(), "a chain has at most 2^32 lines (256 GiB)");
    // Shuffled apart from the lines: 4 bytes each stay in a cache, the lines themselves would not.
    std::vector<std::uint32_t> next(lines);
    std::iota(next.begin(), next.end(), 0u);
    for (std::size_t i = lines - 1; i >= 1; --i) std::swap(next[i], next[below(mix(seed), i)]);
    for (std::size_t i = 0; i < lines; ++i) {
        const std::byte* to = data + std::size_t{next[i]} * line_bytes;
        std::memcpy(data + i * line_bytes, &to, sizeof to);
    }
}

Chase chase(const std::byte* line, std::uint64_t count) {
    const auto start = Clock::now();
    for (std::uint64_t i = 0; i < count; ++i) std::memcpy(&line, line, sizeof line);
    keep(line);
    return {seconds_since(start), line};
}

double random_loads(const std::byte* data, std::size_t nbytes, std::uint64_t count, std::uint64_t seed,
                    bool dependent) {
    const std::size_t lines = nbytes / line_bytes;
    require(lines >= 1, "a range of at least 64 bytes is needed");
    // Zero, but the compiler cannot know: a dependent load's value is masked to nothing, so the
    // addresses are the same whatever the range holds, but the processor must still wait for it.
    std::uint64_t mask = 0;
    asm volatile("" : "+r"(mask));
    std::uint64_t sum = 0, word = 0;
    const auto start = Clock::now();
    if (dependent) {
        for (std::uint64_t i = 0; i < count; ++i) {
            seed += word & mask;
            std::memcpy(&word, data + below(mix(seed), lines) * line_bytes, sizeof word);
        }
        sum = word;
    } else {
        for (std::uint64_t i = 0; i < count; ++i) {
            std::memcpy(&word, data + below(mix(seed), lines) * line_bytes, sizeof word);
            sum += word;
        }
    }
    keep(sum);
    return seconds_since(start);
}

LoadedLatency loaded_latency(const std::byte* line, std::uint64_t count, const std::byte* data, std::size_t nbytes,
                             unsigned threads, double duty) {
    require(duty >= 0.0 && duty <= 1.0, "duty is a share of time, from 0 to 1");
    require(count >= 1, "at least one load is needed");
    // Small enough that the load is even in time, large enough that reading the clock is a small part.
    constexpr std::size_t chunk_bytes = 16 * 1024;
    require(nbytes / (threads ? threads : 1) >= chunk_bytes, "each streaming thread needs at least 16 KiB");
    std::atomic<bool> stop{false};
    std::atomic<unsigned> started{0};
    std::atomic<std::uint64_t> streamed{0};
    auto stream = [&](unsigned index) {
        const Share share = share_of(nbytes, threads, index);
        std::size_t at = 0;
        started.fetch_add(1);
        while (!stop.load(std::memory_order_relaxed)) {
            const auto begin = Clock::now();
            keep(stream_read(data + share.offset + at, chunk_bytes));
            streamed.fetch_add(chunk_bytes, std::memory_order_relaxed);
            const double busy_s = seconds_since(begin);
            at = at + 2 * chunk_bytes <= share.nbytes ? at + chunk_bytes : 0;
            // Spin, not sleep: sleeping is coarser than the pauses wanted here.
            while (duty < 1.0 && seconds_since(begin) * duty < busy_s && !stop.load(std::memory_order_relaxed)) {
            }
        }
    };
    std::vector<std::jthread> workers;
    if (duty > 0.0)
        for (unsigned index = 0; index < threads; ++index) workers.emplace_back(stream, index);
    while (started.load() < workers.size()) std::this_thread::yield();
    const std::uint64_t before = streamed.load(std::memory_order_relaxed);
    const Chase run = chase(line, count);
    const std::uint64_t bytes = streamed.load(std::memory_order_relaxed) - before;
    stop.store(true, std::memory_order_relaxed);
    return {static_cast<double>(bytes) / run.seconds, run.seconds / static_cast<double>(count), run.end};
}

}  // namespace osf::measure
