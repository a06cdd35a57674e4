// Processes: random work by many with some killed at random times, what fork does to pins, readers, and member slots.
#include <fcntl.h>
#include <spawn.h>
#include <thread>
#include <unistd.h>

#include "tests/space/workload.hpp"

using namespace osf;
using namespace osf::test;

static void nap_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

static void processes_share_names() {
    context = "processes share names";
    Place place;
    auto space = place.open();
    std::vector<pid_t> children;
    for (unsigned number = 0; number < 4; number++)
        children.push_back(start([&, number] { Worker(space, number).run(UNDER_TSAN ? 2000 : 15'000); }));
    for (pid_t child : children) CHECK(returned(finish(child)));
    check_end(*space);
}

// Workers are killed all the time and replaced; a reader and the parent hold on.
static void killed_at_random(unsigned seed, u64 bytes, int kills) {
    context = "killed at random, seed " + std::to_string(seed);
    Place place(bytes);
    auto space = place.open();
    std::mt19937 random(seed);
    put(*space, "treasure", 20'000, 1);
    Held treasure = space->find("treasure");
    space->remove("treasure");
    std::vector<pid_t> workers(4);
    auto employ = [&](unsigned number) {
        return start([&, number] {
            for (Worker worker(space, number);;) worker.once();
        });
    };
    unsigned number = seed * 1000;
    for (pid_t& worker : workers) worker = employ(number++);
    Worker own(space, number++);
    for (int round = 0; round < kills; round++) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
        pid_t& victim = workers[random() % workers.size()];
        kill(victim, SIGKILL);
        CHECK(killed(finish(victim)));
        if (round % 3 == 0) space->collect();
        own.run(10);
        CHECK(version_of(space->bytes(treasure), 20'000, hash_name("treasure")) == 1);
        victim = employ(number++);
        if (round % 20 == 19) {  // all stop, and everything is looked at
            for (pid_t& worker : workers) {
                kill(worker, SIGKILL);
                CHECK(killed(finish(worker)));
            }
            check_sound(*space, "audit between");
            for (pid_t& worker : workers) worker = employ(number++);
        }
    }
    for (pid_t worker : workers) {
        kill(worker, SIGKILL);
        CHECK(killed(finish(worker)));
    }
    CHECK(version_of(space->bytes(treasure), 20'000, hash_name("treasure")) == 1);
    space->release(treasure);
    check_end(*space);
}

// The same with nobody left at the end of each round: the next to come repairs.
static void all_killed_at_random() {
    context = "all killed at random";
    Place place;
    std::mt19937 random(7);
    for (int round = 0; round < (UNDER_TSAN ? 6 : 20); round++) {
        std::vector<pid_t> workers;
        for (unsigned number = 0; number < 3; number++)
            workers.push_back(start([&, number] {
                for (Worker worker(place.open(), unsigned(round) * 10 + number);;) worker.once();
            }));
        std::this_thread::sleep_for(std::chrono::microseconds(5000 + random() % 20'000));
        for (pid_t worker : workers) kill(worker, SIGKILL);
        for (pid_t worker : workers) CHECK(killed(finish(worker)));
        CHECK(returned(run([&] {
            auto space = place.open();
            check_sound(*space, "audit after a repair");
            for (const Entry& entry : space->list("")) CHECK(look_up(*space, entry.name));
        })));
    }
    check_end(*place.open());
}

// A child has its own pins on what the parent held when it forked.
static void child_inherits_views() {
    context = "child inherits views";
    Place place;
    auto space = place.open();
    for (u64 nbytes : {SMALL, LARGE}) {
        put(*space, "it", nbytes, 1);
        Held held = space->find("it");
        int go[2], done[2];
        CHECK(pipe(go) == 0 && pipe(done) == 0);
        pid_t child = start([&] {
            char byte = 0;
            CHECK(read(go[0], &byte, 1) == 1);
            CHECK(version_of(space->bytes(held), nbytes, hash_name("it")) == 1);
            space->release(held);
            space->collect();
            CHECK(write(done[1], &byte, 1) == 1);
            CHECK(read(go[0], &byte, 1) == 1);
        });
        char* bytes = space->bytes(held);
        space->remove("it");
        space->release(held);
        space->collect();
        for (int number = 0; number < 50; number++) {  // none of these may get its memory
            Held other = make(*space, "", nbytes, 2, "other");
            CHECK(space->bytes(other) != bytes);
            space->release(other);
        }
        space->collect();
        char byte = 0;
        CHECK(write(go[1], &byte, 1) == 1 && read(done[0], &byte, 1) == 1);
        check_sound(*space);
        u64 owner = 0;
        try {
            owner = space->at(u64(bytes)).record;
        } catch (const Error&) {}
        CHECK(owner == 0);  // freed by the child, which was the last
        CHECK(write(go[1], &byte, 1) == 1);
        CHECK(returned(finish(child)));
        for (int fd : {go[0], go[1], done[0], done[1]}) close(fd);
    }
    check_end(*space);
}

// Threads fork while others work: each child keeps its membership and its pins.
static void forks_among_threads() {
    context = "forks among threads";
    Place place;
    auto space = place.open();
    put(*space, "treasure", SMALL, 1);
    Held treasure = space->find("treasure");
    space->remove("treasure");
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < 2; number++)
        threads.emplace_back([&, number] {
            for (Worker worker(space, number); !over;) worker.once();
        });
    threads.emplace_back([&] {
        while (!over) space->collect();
    });
    for (int round = 0; round < 100; round++) {
        pid_t child = start([&] {
            CHECK(space->members.joined() && load(space->members.at(space->members.slot()).state) == 1);
            CHECK(version_of(space->bytes(treasure), SMALL, hash_name("treasure")) == 1);
            Worker(space, 99).run(20);
            space->release(treasure);
        });
        CHECK(returned(finish(child)));
    }
    over = true;
    for (std::thread& thread : threads) thread.join();
    space->release(treasure);
    check_sound(*space);
}

// The parent is killed while it forks; its child is a member or knows that it is none.
static void parent_dies_while_forking() {
    context = "parent dies while forking";
    Place place;
    auto space = place.open();
    std::mt19937 random(3);
    for (int round = 0; round < 40; round++) {
        int alive[2];
        CHECK(pipe(alive) == 0);
        pid_t parent = start([&] {
            for (;;) {
                pid_t child = fork();
                if (child == 0) {
                    if (space->members.joined()) {
                        CHECK(load(space->members.at(space->members.slot()).state) == 1);
                        put(*space, "child", SMALL, 1);
                    }
                    std::_Exit(0);
                }
                finish(child);
            }
        });
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
        kill(parent, SIGKILL);
        CHECK(killed(finish(parent)));
        space->collect();
        close(alive[1]);
        char byte;
        CHECK(read(alive[0], &byte, 1) == 0);  // the last child has ended too
        close(alive[0]);
    }
    check_end(*space);
}

static void readers_hold_and_leave() {
    context = "readers";
    Place place;
    auto space = place.open();
    put(*space, "it", LARGE, 1);
    int go[2], done[2];
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    space.reset();
    pid_t reader = start([&] {
        auto own = place.open(true);
        Held held = own->find("it");
        char byte = 0;
        CHECK(write(done[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
        CHECK(version_of(own->bytes(held), LARGE, hash_name("it")) == 1);
        try {
            own->remove("it");
            CHECK(false);
        } catch (const Error& error) {
            CHECK(error.code == Code::not_permitted);
        }
        own->release(held);
        CHECK(write(done[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
    });
    char byte = 0;
    CHECK(read(done[0], &byte, 1) == 1);
    {
        auto writer = place.open();
        writer->remove("it");
        writer->collect();
        CHECK(writer->data.used() >= LARGE / PAGE);
    }
    CHECK(write(go[1], &byte, 1) == 1 && read(done[0], &byte, 1) == 1);
    {
        // The reader was the last to hold it, with no writer there: the next one frees it.
        auto writer = place.open();
        check_sound(*writer);
        CHECK(writer->data.used() < LARGE / PAGE && writer->index.live() == 0);
    }
    CHECK(write(go[1], &byte, 1) == 1);
    CHECK(returned(finish(reader)));
    for (int fd : {go[0], go[1], done[0], done[1]}) close(fd);
    check_end(*place.open());
}

// What the last process still held when it left does not stay.
static void last_views_go_with_the_last_member() {
    context = "last views";
    Place place;
    {
        auto space = place.open();
        put(*space, "it", LARGE, 1);
        CHECK(space->find("it"));
        space->remove("it");
        make(*space, "", LARGE, 2, "anonymous");
        make(*space, "draft", SMALL, 3);
    }
    auto space = place.open();
    check_sound(*space);
    CHECK(space->data.used() < LARGE / PAGE);
    check_end(*space);
}

// One is killed while it frees. The others' removals do not pile up, though they never ask for a collection.
static void dead_collector_holds_nobody_up() {
    context = "dead collector";
    Place place;
    auto space = place.open();
    for (long k = 0; !load(space->roots().collect.word); k++) {
        CHECK(k < 1000);
        put(*space, "it", LARGE, 1);
        run([&] {
            step_limit = k;
            space->remove("it");
        });
    }
    for (u64 version = 1; version <= 100; version++) put(*space, "it", LARGE, version);
    CHECK(space->data.used() * PAGE < 20 * LARGE);
    check_end(*space);
}

static void slots_are_used_again() {
    context = "slots are used again";
    Place place;
    auto space = place.open();
    for (int round = 0; round < 40; round++) {
        CHECK(returned(run([&] {
            CHECK(space->members.slot() <= 2);
            make(*space, "", SMALL, 1, "left behind");
        })));
        if (round % 2) space->collect();
    }
    space->collect();
    CHECK(space->members.live_others() == 0);
    check_end(*space);
}

static void fill_slots(Space& space) {
    for (u32 slot = 0; slot < MEMBERS; slot++) {
        Member& member = space.members.at(slot);
        if (load(member.state)) continue;
        store(member.generation, 7u);
        store(member.state, 1u);
    }
    store(space.members.head().slots_high, u32(MEMBERS));
}

// A process that has the lock of every free slot, so that whoever is said to be in them counts as alive.
static pid_t start_crowd(const Space& space, const std::string& directory) {
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t crowd = start([&] {
        const int members = ::open((directory + "/members").c_str(), O_RDWR);
        for (u32 slot = 0; slot < MEMBERS; slot++) {
            struct flock lock {};
            lock.l_type = F_WRLCK;
            lock.l_start = slot;
            lock.l_len = 1;
            if (!load(space.members.at(slot).state)) CHECK(fcntl(members, F_SETLK, &lock) == 0);
        }
        CHECK(write(ready[1], "", 1) == 1);
        for (;;) nap_ms(1000);
    });
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    for (int fd : ready) close(fd);
    return crowd;
}

static void end_by_kill(pid_t process) {
    kill(process, SIGKILL);
    CHECK(killed(finish(process)));
}

// Another program, without the handlers of fork().
static int run_program(const char* role, const std::string& directory) {
    std::string words[] = {"process_test", role, directory};
    char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
    pid_t child = 0;
    CHECK(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ) == 0);
    return finish(child);
}

// Every slot says used. If nobody is alive in them, a child gets one, a reader is refused, a writer takes one over, and what the dead
// held is freed. If all are alive, a child gets none, and is told so.
static void slots_full() {
    context = "slots full";
    Place place;
    auto space = place.open();
    Held held = make(*space, "", LARGE, 1, "left behind");
    pid_t keeper = start([&] { for (;;) nap_ms(1000); });  // so that nobody is the first to come
    fill_slots(*space);
    CHECK(returned(run([&] { CHECK(space->members.joined() && !space->find("it")); })));
    space->collect();
    pid_t crowd = start_crowd(*space, place.directory);
    fill_slots(*space);
    CHECK(returned(run([&] {
        CHECK(!space->members.joined());
        try {
            space->find("it");
            CHECK(false);
        } catch (const Error& error) {
            CHECK(error.code == Code::closed);
        }
    })));
    end_by_kill(crowd);
    CHECK(killed(run([&] {  // its own membership ends without a word, and the slot counts as dead
        raise(SIGKILL);
    })));
    CHECK(space->members.live_others() == 1);
    fill_slots(*space);
    CHECK(returned(run_program("refused", place.directory)));
    CHECK(returned(run_program("taker", place.directory)));
    end_by_kill(keeper);
    space->release(held);
    check_end(*space);
    CHECK(space->members.live_others() == 0);
    for (u32 slot = 0; slot < MEMBERS; slot++) CHECK(load(space->members.at(slot).state) == (slot == space->members.slot()));
}

static int as_another_program(const std::string& role, const std::string& directory) {
    try {
        auto space = Space::open(directory, role == "refused", "boot");
        if (role == "refused") return 1;
        put(*space, "taken over", SMALL, 1);
        check_sound(*space);
        space->remove("taken over");
        return 0;
    } catch (const Error& error) {
        return role == "refused" && error.code == Code::too_many_members ? 0 : 1;
    }
}

int main(int count, char** argument) {
    std::set_terminate([] { failed(__FILE__, __LINE__, "an exception was not caught"); });
    if (count == 3) return as_another_program(argument[1], argument[2]);
    processes_share_names();
    killed_at_random(1, 64 * MIB, UNDER_TSAN ? 60 : 200);
    killed_at_random(2, 3 * MIB, UNDER_TSAN ? 60 : 200);
    all_killed_at_random();
    child_inherits_views();
    // The sanitizers' allocators do not survive a fork among threads (a lock of theirs may be held for ever in the child).
    if (!UNDER_TSAN && !UNDER_ASAN) forks_among_threads();
    parent_dies_while_forking();
    readers_hold_and_leave();
    last_views_go_with_the_last_member();
    dead_collector_holds_nobody_up();
    slots_are_used_again();
    slots_full();
    return 0;
}
