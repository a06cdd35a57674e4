// The measuring kernels do the work they claim: sums are right, chains visit every line, nothing is overwritten.
// No time is compared with a limit: this runs on busy machines.
#include "measure/measure.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                           \
        }                                                                           \
    } while (0)

template <typename Call>
bool refuses(Call call) {
    try {
        call();
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

static void sum_covers_every_word_and_the_tail() {
    for (std::size_t nbytes : {0u, 1u, 7u, 8u, 63u, 64u, 65u, 200u, 4099u}) {
        std::vector<std::byte> data(nbytes);
        std::uint64_t expected = 0;
        for (std::size_t i = 0; i < nbytes; ++i) data[i] = static_cast<std::byte>(i * 37);
        std::size_t at = 0;
        for (std::uint64_t word; at + 8 <= nbytes; at += 8) {
            std::memcpy(&word, data.data() + at, 8);
            expected += word;
        }
        for (; at < nbytes; ++at) expected += std::to_integer<std::uint64_t>(data[at]);
        CHECK(osf::measure::stream_read(data.data(), nbytes) == expected);
    }
}

static void a_chain_is_one_cycle_over_all_lines() {
    for (std::size_t lines : {2u, 3u, 1000u}) {
        osf::measure::Pages pages(lines * osf::measure::line_bytes, 0);
        osf::measure::chain_lines(pages.data(), pages.nbytes(), 7);
        std::set<const std::byte*> seen;
        const std::byte* at = pages.data();
        for (std::size_t i = 0; i < lines; ++i) {
            CHECK(at >= pages.data() && at < pages.data() + pages.nbytes());
            CHECK(seen.insert(at).second);
            std::memcpy(&at, at, sizeof at);
        }
        CHECK(at == pages.data());
        CHECK(osf::measure::chase(pages.data(), 10 * lines).end == pages.data());
    }
}

static void threads_together_write_and_copy_the_whole_range() {
    constexpr std::size_t nbytes = 100'003;  // no multiple of a line or of the threads
    for (unsigned threads : {1u, 2u, 3u}) {
        std::vector<std::byte> source(nbytes), target(nbytes);
        for (std::size_t i = 0; i < nbytes; ++i) source[i] = static_cast<std::byte>(i * 11);
        CHECK(osf::measure::time_copies(target.data(), source.data(), nbytes, threads, 4).size() == 4);
        CHECK(target == source);
        CHECK(osf::measure::time_writes(target.data(), nbytes, threads, 2).size() == 2);
        for (std::byte byte : target) CHECK(byte == std::byte{0x5a});
        for (double seconds : osf::measure::time_reads(source.data(), nbytes, threads, 3)) CHECK(seconds > 0.0);
    }
}

static void random_loads_leave_the_range_as_it_was() {
    std::vector<std::byte> data(64 * 1024, std::byte{9}), before = data;
    for (bool dependent : {false, true}) CHECK(osf::measure::random_loads(data.data(), data.size(), 10'000, 3, dependent) > 0.0);
    CHECK(data == before);
}

static void load_is_zero_without_streamers_and_positive_with_one() {
    osf::measure::Pages chain(1 << 20, 0), data(1 << 20, 0);
    osf::measure::chain_lines(chain.data(), chain.nbytes(), 1);
    const auto idle = osf::measure::loaded_latency(chain.data(), 10'000, data.data(), data.nbytes(), 1, 0.0);
    CHECK(idle.load_bytes_per_s == 0.0 && idle.latency_s > 0.0);
    // On one core the streamer may run only when the chase is preempted: long enough for that to happen.
    const auto busy = osf::measure::loaded_latency(chain.data(), 20'000'000, data.data(), data.nbytes(), 1, 1.0);
    CHECK(busy.load_bytes_per_s > 0.0 && busy.latency_s > 0.0);
}

static void pages_are_touched_and_tell_what_was_given() {
    osf::measure::Pages small(3 << 20, 0), huge(4 << 20, 2 << 20);
    CHECK(small.huge_bytes() == 0);
    CHECK(huge.huge_bytes() <= huge.nbytes());
    CHECK(reinterpret_cast<std::uintptr_t>(huge.data()) % (2 << 20) == 0);
}

static void loopback_carries_every_byte_both_ways() {
    CHECK(osf::measure::loopback_round_trips(64, 100).size() == 100);
    CHECK(osf::measure::loopback_stream(3'000'001, 65'536) > 0.0);
}

static void impossible_requests_are_refused() {
    std::byte line[64] = {};
    CHECK(refuses([&] { osf::measure::chain_lines(line, 64, 1); }));
    CHECK(refuses([&] { osf::measure::time_reads(line, 63, 1, 1); }));
    CHECK(refuses([&] { osf::measure::time_reads(line, 64, 0, 1); }));
    CHECK(refuses([&] { osf::measure::random_loads(line, 1, 1, 1, false); }));
    CHECK(refuses([&] { osf::measure::loaded_latency(line, 1, line, 64, 1, 2.0); }));
    CHECK(refuses([&] { osf::measure::loopback_round_trips(0, 1); }));
    CHECK(refuses([&] { osf::measure::Pages(4096, 1234); }));
}

int main() {
    sum_covers_every_word_and_the_tail();
    a_chain_is_one_cycle_over_all_lines();
    threads_together_write_and_copy_the_whole_range();
    random_loads_leave_the_range_as_it_was();
    load_is_zero_without_streamers_and_positive_with_one();
    pages_are_touched_and_tell_what_was_given();
    loopback_carries_every_byte_both_ways();
    impossible_requests_are_refused();
    std::puts("measure: ok");
}
