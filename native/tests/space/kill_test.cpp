// kill -9 at every step of every operation. A child does the operation and dies at step k, for k = 0, 1, 2, ... until
// it survives; a survivor that holds pins all along then finds nothing leaked, nothing missing, nothing damaged, what
// it holds unchanged, and every array whole and old or new. Then the same with a second death in the recovery, and with
// nobody left alive, so that the next to open the space repairs it.
#include "tests/space/kill_operations.hpp"

using namespace osf;
using namespace osf::test;

constexpr long STRIDE = UNDER_TSAN ? 13 : UNDER_ASAN ? 7 : 1;  // every step, but where forks are slow

static std::string only;  // operations whose title contains it

static void say(const char* what, const std::string& title, long kills) {
    std::printf("%-28s %-36s %5ld kills\n", what, title.c_str(), kills);
    std::fflush(stdout);
}

static void set_context(const char* variant, const Operation& operation, long k, long j = -1) {
    context = std::string(variant) + ": " + operation.title + ", killed at step " + std::to_string(k) +
              (j < 0 ? "" : ", its recoverer at step " + std::to_string(j));
}

// What a survivor holds from the beginning to the end: a published array and two removed ones.
struct Treasure {
    Space& space;
    Held keep, small, large;
    explicit Treasure(Space& of) : space(of) {
        put(space, "keep", SMALL, 1);
        keep = space.find("keep");
        put(space, "ghost", SMALL, 2);
        small = space.find("ghost");
        put(space, "ghost", LARGE, 3);
        large = space.find("ghost");
        space.remove("ghost");
        space.collect();
    }
    void check() const {
        CHECK(version_of(space.bytes(keep), SMALL, hash_name("keep")) == 1);
        CHECK(version_of(space.bytes(small), SMALL, hash_name("ghost")) == 2);
        CHECK(version_of(space.bytes(large), LARGE, hash_name("ghost")) == 3);
        CHECK(space.find("ghost").record == 0);
    }
    void release() const {
        for (const Held& held : {keep, small, large}) space.release(held);
    }
};

// A child that dies at step k of the operation, or after it; true if it was killed in it.
static bool kill_at(std::shared_ptr<Space>& space, const Operation& operation, long k) {
    int status = run([&] {
        step_limit = k;
        operation.act(space);
        step_limit = -1;
    });
    if (!killed(status) && !returned(status)) failed(__FILE__, __LINE__, "the child ended with status " + std::to_string(status));
    return killed(status);
}

// A newcomer gets the dead one's slot, and the pins at the same places in it: whatever the dead left half done must
// not be finished with them.
static void newcomer(std::shared_ptr<Space>& space) {
    space->collect();
    int go[2], done[2];
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    pid_t child = start([&] {
        std::vector<Held> held;
        for (int number = 0; number < 12; number++) held.push_back(space->find("keep"));
        char byte = 0;
        CHECK(write(done[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
        for (const Held& each : held) {
            CHECK((load(space->members.pin(each.pin)) & ~FLAGS) == each.record);
            CHECK(space->meta.slot_taken(each.record));
            space->release(each);
        }
    });
    char byte = 0;
    CHECK(read(done[0], &byte, 1) == 1);
    put(*space, "newcomer", SMALL, 1);
    check_sound(*space, "audit with a newcomer");
    space->remove("newcomer");
    CHECK(write(go[1], &byte, 1) == 1);
    CHECK(returned(finish(child)));
    for (int fd : {go[0], go[1], done[0], done[1]}) close(fd);
}

static void clean_up(Space& space, const Operation& operation) {
    operation.judge(space);
    remove_all(space);
    check_sound(space, "audit after cleaning up");
    CHECK(space.index.live() == 1);
}

// One kill and what a survivor makes of it. The survivor may look at everything first, see a newcomer first, or just go
// on; and it may hold what the operation replaces.
enum class Then { audit, newcomer, go_on };

static bool survive(std::shared_ptr<Space>& space, const Treasure& treasure, const Operation& operation, long k, Then then) {
    operation.prepare(*space);
    Held old = space->find("a");
    if (old && then != Then::newcomer) space->release(old), old = {};
    bool died = kill_at(space, operation, k);
    if (then == Then::audit) check_sound(*space, "audit after the kill");
    if (then == Then::newcomer) newcomer(space);
    treasure.check();
    if (old) {
        CHECK(version_of(space->bytes(old), space->record(old).nbytes, hash_name("a")) == 1);
        space->release(old);
    }
    clean_up(*space, operation);
    treasure.check();
    return died;
}

static void survivor_goes_on() {
    for (const Operation& operation : operations(only)) {
        long kills = 0;
        for (Then then : {Then::audit, Then::newcomer, Then::go_on}) {
            Place worn;
            std::shared_ptr<Space> space = worn.open();
            Treasure treasure(*space);
            for (long k = long(then) % STRIDE;; k += STRIDE, kills++) {  // in one space, whose memory has seen use
                set_context(then == Then::audit ? "audit" : then == Then::newcomer ? "newcomer" : "go on", operation, k);
                if (!survive(space, treasure, operation, k, then)) break;
            }
            treasure.release();
            space->remove("keep");
            check_sound(*space);
        }
        for (long k = 3 % STRIDE;; k += STRIDE, kills++) {  // and each in a fresh one
            set_context("fresh", operation, k);
            Place fresh;
            std::shared_ptr<Space> space = fresh.open();
            Treasure treasure(*space);
            if (!survive(space, treasure, operation, k, kills % 2 ? Then::audit : Then::go_on)) break;
        }
        say("a survivor goes on", operation.title, kills);
    }
}

static void recoverer_dies_too() {
    for (const Operation& operation : operations(only)) {
        Place place;
        std::shared_ptr<Space> space = place.open();
        Treasure treasure(*space);
        long kills = 0;
        bool first = true, second = true;
        for (long k = 0; first; k += 3 * STRIDE) {
            second = true;
            for (long j = 0, stride = 1; second; j += stride, stride += 2) {
                set_context("second death", operation, k, j);
                operation.prepare(*space);
                first = kill_at(space, operation, k);
                int status = run([&] {
                    step_limit = j;
                    space->collect();
                    step_limit = -1;
                });
                CHECK(killed(status) || returned(status));
                second = killed(status);
                kills += second;
                treasure.check();
                clean_up(*space, operation);
            }
        }
        treasure.release();
        say("its recoverer dies too", operation.title, kills);
    }
}

// Nobody is left: the next to open the space repairs it, reads it only, or finds it sealed.
static void everybody_dies() {
    for (const Operation& operation : operations(only)) {
        Place place;
        long kills = 0, k = 0;
        for (bool died = true; died; kills++, k += STRIDE) {
            set_context("everybody dies", operation, k);
            int status = run([&] {
                std::shared_ptr<Space> space = place.open();
                if (!look_up(*space, "keep")) put(*space, "keep", SMALL, 1);
                operation.prepare(*space);
                step_limit = k;
                operation.act(space);
            });
            died = killed(status);
            CHECK(died || returned(status));
            if (kills % 2) {
                CHECK(returned(run([&] {
                    std::shared_ptr<Space> reader = place.open(true);
                    CHECK(look_up(*reader, "keep") == 1);
                    for (const Entry& entry : reader->list(""))
                        if (entry.kind == kind_array) look_up(*reader, entry.name);
                })));
            }
            {
                std::shared_ptr<Space> space = place.open();
                check_sound(*space, "audit after a repair");
                CHECK(look_up(*space, "keep") == 1);
                clean_up(*space, operation);
            }
            std::shared_ptr<Space> space = place.open();  // it was closed in order: sealed
            check_sound(*space, "audit after a seal");
            CHECK(look_up(*space, "keep") == 1 && space->index.live() == 1);
        }
        say("everybody dies", operation.title, kills - 1);
    }
}

// Without recovery the same checks must fail: they can.
static void checks_can_fail() {
    int caught = 0, tried = 0;
    for (const Operation& operation : operations(only)) {
        if (std::string(operation.title).find("small") == std::string::npos) continue;
        for (long k = 2; k < 20; k += 5) {
            tried++;
            Place place;
            int status = run([&] {
                if (!std::freopen("/dev/null", "w", stderr)) std::_Exit(2);
                recovery = false;
                std::shared_ptr<Space> space = place.open();
                operation.prepare(*space);
                bool died = kill_at(space, operation, k);
                alarm(2);  // it may also wait for ever
                bool good = sound(space->audit());
                if (good) {
                    remove_all(*space);
                    good = sound(space->audit()) && space->data.used() <= 2 * CHUNK_PAGES;
                }
                std::_Exit(died && !good ? 3 : 0);
            });
            caught += !returned(status);
        }
    }
    std::printf("without recovery %d of %d kills leave damage\n", caught, tried);
    CHECK(caught > 0);
}

int main(int count, char** argument) {
    std::set_terminate([] { failed(__FILE__, __LINE__, "an exception was not caught"); });
    // Without arguments everything; or the number of a part, and a piece of the titles wanted.
    const std::string part = count > 1 ? argument[1] : "";
    only = count > 2 ? argument[2] : "";
    if (part.empty() || part == "1") survivor_goes_on();
    if (part.empty() || part == "2") recoverer_dies_too();
    if (part.empty() || part == "3") everybody_dies();
    if (part.empty() || part == "4") checks_can_fail();
    return 0;
}
