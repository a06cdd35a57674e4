// Several threads of one process on few names; meant for ThreadSanitizer as much as for itself.
#include <thread>

#include "tests/space/workload.hpp"

using namespace osf;
using namespace osf::test;

static void threads_share_names(unsigned seed, u64 bytes, int rounds) {
    context = "threads share names, seed " + std::to_string(seed);
    Place place(bytes);
    auto space = place.open();
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < 4; number++)
        threads.emplace_back([&, number] { Worker(space, seed * 100 + number).run(rounds); });
    for (std::thread& thread : threads) thread.join();
    check_end(*space);
}

// One that puts versions in order, and readers that never see an older one after a newer, nor none.
static void readers_see_versions_in_order() {
    context = "versions in order";
    Place place;
    auto space = place.open();
    put(*space, "name", SMALL, 1);
    std::atomic<bool> over{false};
    std::vector<std::thread> readers;
    for (int number = 0; number < 2; number++)
        readers.emplace_back([&] {
            for (long seen = 1; !over;) {
                long version = look_up(*space, "name", "name");
                CHECK(version >= seen);
                seen = version;
            }
        });
    for (u64 version = 2; version < (UNDER_TSAN ? 2000 : 20'000); version++) put(*space, "name", version % 7 ? SMALL : 20'000, version);
    over = true;
    for (std::thread& reader : readers) reader.join();
    check_end(*space);
}

// An array that is renamed to and fro is always under one of its two names.
static void renamed_array_is_never_lost() {
    context = "renamed to and fro";
    Place place;
    auto space = place.open();
    const std::string first = name_in(3, "x"), second = name_in(9, "y");
    put(*space, first, SMALL, 1, "it");
    std::atomic<bool> over{false};
    std::thread reader([&] {
        while (!over) {
            // Two looks are no snapshot: it may slip by between them, so only many misses in a row count.
            int misses = 0;
            while (!over && !look_up(*space, first, "it") && !look_up(*space, second, "it")) CHECK(++misses < 1000);
        }
    });
    for (int round = 0; round < (UNDER_TSAN ? 1000 : 10'000); round++) space->rename(round % 2 ? second : first, round % 2 ? first : second);
    over = true;
    reader.join();
    check_end(*space);
}

// Tables are rebuilt under readers' eyes.
static void readers_find_while_tables_grow() {
    context = "tables grow";
    Place place;
    auto space = place.open();
    for (int number = 0; number < 50; number++) put(*space, "stays-" + std::to_string(number), SMALL, 1);
    std::atomic<bool> over{false};
    std::vector<std::thread> readers;
    for (int which = 0; which < 2; which++)
        readers.emplace_back([&] {
            while (!over)
                for (int number = 0; number < 50; number++) CHECK(look_up(*space, "stays-" + std::to_string(number)) == 1);
        });
    const int count = UNDER_TSAN ? 3000 : 30'000;
    for (int number = 0; number < count; number++) put(*space, "more-" + std::to_string(number), 16, 1);
    for (int number = 0; number < count; number++) CHECK(space->remove("more-" + std::to_string(number)));
    over = true;
    for (std::thread& reader : readers) reader.join();
    check_end(*space);
}

// Threads that open and close one space at once get the same one, joined.
static void threads_open_at_once() {
    context = "open at once";
    Place place;
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; number++)
        threads.emplace_back([&, number] {
            for (int round = 0; round < (UNDER_TSAN ? 20 : 60); round++) {
                auto space = place.open();
                put(*space, "name-" + std::to_string(number), SMALL, 1);
                CHECK(look_up(*space, "name-" + std::to_string(number)) == 1);
            }
        });
    for (std::thread& thread : threads) thread.join();
    auto space = place.open();
    CHECK(space->index.live() == 4);
    check_end(*space);
}

// Who finds an array by address while it is being freed has it, or does not; pins go from thread to thread all the time.
static void what_is_found_by_address_is_not_freed() {
    context = "found by address";
    Place place;
    auto space = place.open();
    std::atomic<bool> over{false};
    std::array<std::atomic<u64>, 3> where{};
    std::vector<std::thread> readers;
    for (int number = 0; number < 3; number++)
        readers.emplace_back([&, number] {
            while (!over) {
                Held held;
                try {
                    held = space->at(where[size_t(number)]);
                } catch (const Error& error) {
                    CHECK(error.code == Code::bad_address);
                    continue;
                }
                const u64 ref = load(space->record(held).data);
                for (int time = 0; time < 20; time++) {
                    const u64 state = load(space->record(held).state);
                    CHECK(state != state_free && load(space->record(held).data) == ref);
                }
                space->release(held);
            }
        });
    for (u64 round = 0; round < (UNDER_TSAN ? 5000 : 100'000); round++) {
        put(*space, "name", 64, round + 1);
        Held held = space->find("name");
        where[round % 3] = u64(space->bytes(held));
        space->release(held);
        space->remove("name");
    }
    over = true;
    for (std::thread& reader : readers) reader.join();
    check_end(*space);
}

int main() {
    std::set_terminate([] { failed(__FILE__, __LINE__, "an exception was not caught"); });
    const int rounds = UNDER_TSAN ? 4000 : 30'000;
    threads_share_names(1, 64 * MIB, rounds);
    threads_share_names(2, 2 * MIB, rounds);  // often full
    readers_see_versions_in_order();
    renamed_array_is_never_lost();
    readers_find_while_tables_grow();
    threads_open_at_once();
    what_is_found_by_address_is_not_freed();
    return 0;
}
