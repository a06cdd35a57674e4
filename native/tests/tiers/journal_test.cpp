// The journal on a disk that loses power or fails at every single operation: what was committed is there, all of it or, if the
// commit had not returned, perhaps none of it; and it goes on from there.
#include <chrono>
#include <utility>

#include "tests/tiers/journal_model.hpp"

using namespace osf;
using namespace osf::test;

constexpr u64 LESS = UNDER_ASAN || UNDER_TSAN ? 6 : 1;

static long tried = 0;

static Code code_of(const std::function<void()>& body) {
    try {
        body();
    } catch (const Error& error) {
        return error.code;
    }
    failed(__FILE__, __LINE__, "no Error came");
}

// After a recovery: commits, a new process, a second power cut in a commit, at any of its operations.
static void goes_on(SimDisk& disk, Pair& found, Random& random) {
    for (int round = 0; round < 2; round++) {
        found.commit(some_commit(random, found.last, 6));
        Pair again(disk);
        find(disk, again, found, false);
    }
    disk.cut_at(1 + long(random() % 4));
    try {
        for (int round = 0; round < 2; round++) found.commit(some_commit(random, found.last, 6));
    } catch (const PowerCut&) {
    }
    disk.power_cut(random);
    Pair third(disk);
    find(disk, third, found, true);
    third.commit(some_commit(random, third.last, 6));
    disk.power_cut(random);
    Pair fourth(disk);
    find(disk, fourth, third, false);
}

static void run(Pair& pair, const std::vector<Commit>& history) {
    pair.create();
    for (const Commit& commit : history) pair.commit(commit);
}

static void power_cuts_everywhere(u64 seed) {
    Random random(seed);
    const std::vector<Commit> history = some_history(random, 4 + random() % 14);
    SimDisk whole(seed);
    Pair all(whole);
    run(all, history);
    const long operations = whole.operations();
    for (long at = 1; at <= operations + 1; at++) {
        context = "seed " + std::to_string(seed) + ", cut at operation " + std::to_string(at);
        SimDisk disk(seed);
        disk.cut_at(at);
        Pair pair(disk);
        try {
            run(pair, history);
            CHECK(at == operations + 1);
        } catch (const PowerCut&) {
        }
        for (int outcome = 0; outcome < 4; outcome++) {
            std::unique_ptr<SimDisk> after = disk.copy();
            after->power_cut(random);
            Pair found(*after);
            find(*after, found, pair, true);
            goes_on(*after, found, random);
            tried++;
        }
        // Only the process is killed. What is recovered then is what a power cut later must leave.
        disk.kill();
        Pair found(disk);
        find(disk, found, pair, true);
        disk.power_cut(random);
        Pair again(disk);
        find(disk, again, found, false);
        goes_on(disk, again, random);
        tried++;
    }
}

static void cut_now(SimDisk& disk, const Pair& pair, bool doubt, Random& random) {
    std::unique_ptr<SimDisk> after = disk.copy();
    after->power_cut(random);
    Pair found(*after);
    find(*after, found, pair, doubt);
    goes_on(*after, found, random);
}

// The operation number `at` fails, and perhaps every `again`-th after it, until three calls have failed. Nothing is lost, and when the
// disk works again so does the journal.
static void failure(const std::vector<Commit>& history, u64 seed, long at, int error, long again, Random& random) {
    SimDisk disk(seed * 1000 + u64(at));
    Pair pair(disk);
    disk.fail_after(at, error, again);
    int failures = 0;
    auto expect = [&](const Error& seen) {
        CHECK(seen.code == (error == ENOSPC ? Code::no_room : Code::os) || (!pair.created && failures && seen.code == Code::name_taken));
        CHECK(++failures <= (again ? 3 : 1));
        if (failures == 3 || !again) disk.heal();
    };
    while (!pair.created) {
        try {
            pair.create();
        } catch (const Error& seen) {
            expect(seen);
            if (failures == 3 || !again) pair.journal.remove();  // what was made and could not be taken away
        }
    }
    bool failed_before = false;
    for (u64 next = 0; next < history.size();) {
        const bool other = failed_before && random() % 2;  // not the same once more: the least that can be committed
        try {
            pair.commit(other ? Commit{{}, false} : history[next]);
            CHECK(!pair.journal.in_doubt());
            next += !other;
            if (failed_before) cut_now(disk, pair, false, random);
            failed_before = false;
        } catch (const Error& seen) {
            expect(seen);
            pair.check();
            if (!again) CHECK(!pair.journal.in_doubt());  // the disk works: it was taken back
            if (!pair.journal.in_doubt()) pair.under_way.clear();
            cut_now(disk, pair, pair.journal.in_doubt(), random);
            failed_before = true;
        }
        tried++;
    }
    disk.power_cut(random);
    Pair found(disk);
    find(disk, found, pair, false);
    goes_on(disk, found, random);
}

static void failures_everywhere(u64 seed) {
    Random random(seed);
    const std::vector<Commit> history = some_history(random, 3 + random() % 10);
    SimDisk whole(seed);
    Pair all(whole);
    run(all, history);
    for (long at = 1; at <= whole.operations(); at++)
        for (int error : {EIO, ENOSPC, SimDisk::SHORT})
            for (long again : {0l, 1l, 2 + long(random() % 3), 5l, 6l, 7l}) {  // 6, 7: the rename and its sync, when a file follows a failure
                context = "seed " + std::to_string(seed) + ", operation " + std::to_string(at) + " fails with " + std::to_string(error) +
                          ", again " + std::to_string(again);
                failure(history, seed, at, error, again, random);
            }
}

// Reads and syncs of a recovery fail: an Error, not a state, and the next try succeeds.
static void recovery_meets_errors() {
    context = "recovery meets errors";
    Random random(5);
    SimDisk disk;
    Pair pair(disk);
    run(pair, some_history(random, 20));
    for (long at = 1;; at++) {
        Pair found(disk);
        disk.fail_after(at, EIO);
        try {
            found.journal.recover();
            CHECK(at > 4);
            disk.heal();
            break;
        } catch (const Error& error) {
            CHECK(error.code == Code::os && image_of(found.journal).empty());
        }
        find(disk, found, pair, false);
    }
}

// The disk fills up: no_room, nothing in doubt, nothing lost; with room again it goes on in the same file.
static void a_full_disk() {
    context = "a full disk";
    Random random(6);
    for (u64 room = 10 * SECTOR; room < 60 * SECTOR; room += SECTOR) {
        SimDisk disk(room);
        disk.set_room(room);
        Pair pair(disk);
        pair.create();
        Commit commit{{}, false};
        for (u64 number = 0;; number++) {
            commit.pages = {{number, 1}, {number + 1, 2}};
            try {
                pair.commit(commit);
            } catch (const Error& error) {
                CHECK(error.code == Code::no_room && !pair.journal.in_doubt());
                break;
            }
        }
        pair.check();
        std::unique_ptr<SimDisk> after = disk.copy();
        after->power_cut(random);
        Pair found(*after);
        find(*after, found, pair, false);
        disk.set_room(~u64(0));
        pair.commit(commit);
        goes_on(disk, pair, random);
    }
}

static void only_differences_are_written() {
    context = "only differences are written";
    SimDisk disk;
    Journal journal(disk, "dir/space", MIB);
    CHECK(code_of([&] { journal.recover(); }) == Code::corrupt);
    journal.create();
    CHECK(journal.generation() == 0 && Journal::exists(disk, "dir/space"));
    CHECK(code_of([&] { Journal(disk, "dir/space").create(); }) == Code::name_taken);
    Commit many{{}, true};
    for (u64 number = 0; number < 40; number++) many.pages.emplace_back(number, 3);
    auto growth = [&](const Commit& commit) {
        const u64 before = disk.written("dir/space.journal.1");
        commit.run(journal);
        return disk.written("dir/space.journal.1") - before;
    };
    CHECK(growth(many) == SECTOR + 40 * PAGE);
    CHECK(growth(many) == SECTOR && journal.generation() == 2);
    CHECK(growth({{{7, 3}, {8, 4}, {8, 5}, {9, 3}}, false}) == SECTOR + PAGE);
    CHECK(growth({{{8, 5}}, true}) == SECTOR && image_of(journal) == (Model{{8, 5}}) && journal.page(7) == nullptr);
    journal.remove();
    CHECK(disk.names().empty() && journal.generation() == 0 && !journal.page(8));
    Random random(1);
    disk.power_cut(random);
    CHECK(disk.names().empty());
    journal.create();
}

// Long after the first, the files are still two at most and no longer than the rule says.
static void the_log_is_bounded() {
    context = "the log is bounded";
    Random random(7);
    SimDisk disk;
    Pair pair(disk);
    pair.create();
    u64 names = 0;
    for (int round = 0; round < 2000; round++) {
        pair.commit(some_commit(random, pair.last, 20));
        CHECK(disk.names().size() == 1);
        const std::string name = *disk.names().begin();
        names |= name.back() == '0' ? 1 : 2;
        CHECK(disk.content(name).size() <= SECTOR + 3 * (20 * PAGE) + 3 * STEP + SECTOR);
    }
    CHECK(names == 3);
}

// The removal is cut anywhere: the last state or none, never an older one.
static void removal_is_cut() {
    context = "removal is cut";
    Random random(8);
    for (int round = 0; round < 400; round++) {
        SimDisk disk(u64(round) + 1);
        Pair pair(disk);
        run(pair, some_history(random, 12));
        disk.cut_at(1 + round % 4);
        try {
            pair.journal.remove();
        } catch (const PowerCut&) {
        }
        disk.power_cut(random);
        if (!Journal::exists(disk, "dir/space")) continue;
        Pair found(disk);
        find(disk, found, pair, false);
    }
}

// Lists of several sectors and writes of several pieces, and the real disk.
static void large_and_on_a_real_disk() {
    context = "large, on a real disk";
    const char* tmp = std::getenv("TMPDIR");
    std::string directory = std::string(tmp ? tmp : "/tmp") + "/osf-journal-XXXXXX";
    CHECK(mkdtemp(directory.data()) != nullptr);
    const std::string path = directory + "/space";
    Model expected;
    {
        Journal journal(real_disk(), path);
        journal.create();
        Commit commit{{}, true};
        for (u64 number = 0; number < 3000; number++) commit.pages.emplace_back(number * 7, u8(number % 24));
        commit.run(journal);
        expected = commit.after({});
        for (u64 round = 0; round < 12; round++) {  // grows beyond twice the image
            Commit change{{}, round == 5};
            const u64 pages = round == 5 ? 1500 : 900;
            for (u64 number = 0; number < pages; number++) change.pages.emplace_back(number * 7, u8((number + round) % 24));
            change.run(journal);
            expected = change.after(expected);
        }
    }
    CHECK(real_disk().exists(path + ".journal.0") != real_disk().exists(path + ".journal.1"));
    Journal journal(real_disk(), path);
    journal.recover();
    CHECK(image_of(journal) == expected && journal.generation() == 13);
    Commit{{{1, 1}}, false}.run(journal);
    Journal(real_disk(), path).remove();
    CHECK(!Journal::exists(real_disk(), path) && ::rmdir(directory.c_str()) == 0);
}

int main() {
    auto before = std::chrono::steady_clock::now();
    auto say = [&](const char* what) {
        const auto now = std::chrono::steady_clock::now();
        std::printf("%-28s %8ld tried %6.2f s\n", what, std::exchange(tried, 0), std::chrono::duration<double>(now - before).count());
        std::fflush(stdout);
        before = now;
    };
    only_differences_are_written();
    the_log_is_bounded();
    removal_is_cut();
    recovery_meets_errors();
    a_full_disk();
    large_and_on_a_real_disk();
    say("plain");
    for (u64 seed = 1; seed <= 40 / LESS; seed++) power_cuts_everywhere(seed);
    say("power cuts everywhere");
    for (u64 seed = 1; seed <= (LESS > 1 ? 1 : 4); seed++) failures_everywhere(seed);
    say("failures everywhere");
    return 0;
}
