// Tables and kill -9: at every step of every operation, in the recovery, and at random at full speed.
#include "tests/tables/rows.hpp"

using namespace osf;
using namespace osf::test;

static bool dies_at(long k, const std::function<void()>& deed) {
    int status = run([&] {
        step_limit = k;
        deed();
        step_limit = -1;
    });
    if (!killed(status) && !returned(status)) failed(__FILE__, __LINE__, "the child ended with status " + std::to_string(status));
    return killed(status);
}

static const std::vector<std::int64_t> SOME = {3, 7, 0, 39};

static long updates_are_killed(bool twice) {
    long kills = 0;
    bool died = true;
    for (long k = 0; died; k++) {
        context = std::string("update") + (twice ? " and recovery" : "") + ", killed at step " + std::to_string(k);
        Place place;
        auto space = place.open();
        auto table = make_table(space);
        step_rows(table, {1, 2, 3});
        died = dies_at(k, [&] { step_rows(table, SOME); });
        kills += died;
        if (twice && died)
            for (long j : {0, 1, 2, 3, 5, 8}) kills += dies_at(j, [&] { step_rows(table, SOME); });
        check_pairs(table, ROWS);
        table->mend();
        check_quiet(*table);
        const u64 before = table->stats().interrupted;
        CHECK(!died || before >= 1 || k < 2);                // it died as a writer
        check_pairs(table, ROWS);
        step_rows(table, SOME);
        check_pairs(table, ROWS);
        if (twice) k += 3;
    }
    return kills;
}

// A process that may not write reads what the dead one saved.
static void readers_without_permission() {
    bool died = true;
    for (long k = 0; died; k++) {
        context = "read-only, killed at step " + std::to_string(k);
        Place place;
        CHECK(returned(run([&] { make_table(place.open()); })));
        died = killed(run([&] {
            auto space = place.open();
            auto table = Table::open(space, "table");
            step_limit = k;
            step_rows(table, {5});
            step_limit = -1;
        }));
        CHECK(returned(run([&] {
            auto space = place.open(true);
            check_pairs(Table::open(space, "table"), ROWS);
        })));
    }
}

static long growth_is_killed() {
    long kills = 0;
    bool died = true;
    for (long k = 0; died; k++) {
        context = "grow, killed at step " + std::to_string(k);
        Place place;
        auto space = place.open();
        auto table = make_table(space);
        step_rows(table, {1});
        died = dies_at(k, [&] { table->grow(30); });
        kills += died;
        const u64 rows = table->snapshot()->rows;
        CHECK(rows == ROWS || rows == ROWS + 30);
        table->grow(30);
        CHECK(table->snapshot()->rows == rows + 30);
        step_rows(table, {1, std::int64_t(rows + 29)});
        CHECK(check_pairs(table, rows + 30) == 3);
        CHECK(hidden_arrays(*space) == 2 * table->stats().parts);
    }
    return kills;
}

static long making_is_killed() {
    long kills = 0;
    bool died = true;
    for (long k = 0; died; k++) {
        context = "make, killed at step " + std::to_string(k);
        Place place;
        auto space = place.open();
        died = dies_at(k, [&] { make_table(space); });
        kills += died;
        if (auto found = Table::open(space, "table")) CHECK(check_pairs(found, ROWS) == 0);
        make_table(space, "other");                          // clears away what was not made
        CHECK(hidden_arrays(*space) == (Table::open(space, "table") ? 4 : 2));
    }
    return kills;
}

static long deletion_is_killed() {
    long kills = 0;
    bool died = true;
    for (long k = 0; died; k++) {
        context = "delete, killed at step " + std::to_string(k);
        Place place;
        auto space = place.open();
        auto table = make_table(space);
        died = dies_at(k, [&] {
            Held held = space->find("table");
            Table::discard(space, held);
            space->release(held);
        });
        kills += died;
        if (auto found = Table::open(space, "table")) CHECK(check_pairs(found, ROWS) == 0);  // it had not begun
        else {
            CHECK(hidden_arrays(*space) == 0);
            CHECK(!space->find("table"));
        }
    }
    return kills;
}

// Writers die at any moment, at full speed; a survivor reads and checks after every death.
static void writers_are_killed_at_random(int kills, unsigned seed) {
    context = "killed at random, seed " + std::to_string(seed);
    Place place;
    auto space = place.open();
    auto table = make_table(space);
    std::mt19937 random(seed);
    auto begin = [&] {
        const unsigned number = random();
        return start([&, number] {
            std::mt19937 own(number);
            for (int count = 0;; count++) {
                std::vector<std::int64_t> ids;
                for (int at = 0; at < 60; at++) ids.push_back(std::int64_t(own() % ROWS));
                std::sort(ids.begin(), ids.end());
                ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
                if (count < 60) step_rows(table, ids);       // so that the list of pairs is long enough
                else usleep(100);
            }
        });
    };
    std::vector<pid_t> workers = {begin(), begin()};
    for (int number = 0; number < kills; number++) {
        usleep(random() % 1000);
        pid_t& victim = workers[random() % workers.size()];
        ::kill(victim, SIGKILL);
        CHECK(killed(finish(victim)));
        // Rows and states are read one after the other here, and the other writer works on: only rows must be of the list.
        for (const Pair& pair : read_pairs(table, ROWS)) pair_of(pair.row);
        victim = begin();
    }
    for (pid_t worker : workers) {
        ::kill(worker, SIGKILL);
        finish(worker);
    }
    check_pairs(table, ROWS);
    table->mend();
    check_quiet(*table);
    CHECK(table->stats().interrupted > 0);
}

int main() {
    std::set_terminate([] { failed(__FILE__, __LINE__, "an exception was not caught"); });
    if (UNDER_TSAN) return 0;  // forks of threads that it does not follow
    std::printf("updates: %ld kills\n", updates_are_killed(false));
    std::printf("and their recovery: %ld kills\n", updates_are_killed(true));
    readers_without_permission();
    std::printf("growth: %ld kills\n", growth_is_killed());
    std::printf("making: %ld kills\n", making_is_killed());
    std::printf("deletion: %ld kills\n", deletion_is_killed());
    writers_are_killed_at_random(std::getenv("OPENSHELF_SOAK") ? 2000 : UNDER_ASAN ? 20 : 100, 1);
    return 0;
}
