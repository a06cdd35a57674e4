// Members that stand for processes on other hosts: several in one process, cleared, and adopted after their keeper was killed.
#include <thread>

#include "tests/check.hpp"

using namespace osf;
using namespace osf::test;

static Uuid uuid_of(u8 number) {
    Uuid uuid{};
    uuid.fill(number);
    return uuid;
}

static Held make_lock(Space& space, const std::string& name) {
    Spec spec;
    spec.nbytes = sizeof(Lock);
    spec.kind = kind_lock;
    spec.name = name;
    Held held = space.make(spec, true);
    space.hand_out(held);
    space.publish(held, false);
    return held;
}

static Lock& lock_at(Space& space, const Held& held) { return *reinterpret_cast<Lock*>(space.bytes(held)); }

static bool occupied(Space& space, u64 address) {
    try {
        space.release(space.at(address));
        return true;
    } catch (const Error&) {
        return false;
    }
}

static void several_in_one_process() {
    context = "several in one process";
    Place place;
    auto home = place.open();
    auto first = Space::proxy(home, uuid_of(1), false), second = Space::proxy(home, uuid_of(2), false);
    CHECK(home->members.live_others() == 2 && home->members.live_others(false) == 0);
    CHECK(first->members.id() != second->members.id() && first->members.id() != home->members.id());
    for (auto& space : {home, first, second}) space->collect();  // nobody reaps another of its own process
    CHECK(home->members.alive(first->members.id()) && second->members.alive(first->members.id()) && first->members.alive(home->members.id()));

    put(*home, "kept", LARGE, 1);
    Held of_first = first->find("kept"), of_second = second->find("kept");
    u64 address = u64(first->bytes(of_first));
    home->remove("kept");
    home->collect();
    Held lock = make_lock(*home, "lock");
    Held seen_first = first->find("lock"), seen_second = second->find("lock");
    CHECK(lock_take_as(first->members.id(), lock_at(*first, seen_first), first->members, -1) == Grant::clean);
    CHECK(lock_take_as(second->members.id(), lock_at(*second, seen_second), second->members, 50'000'000) == Grant::timed_out);
    second->release(of_second);
    second->collect();
    CHECK(occupied(*home, address));
    CHECK(version_of(first->bytes(of_first), LARGE, hash_name("kept")) == 1);

    u32 id = first->members.id();
    first.reset();
    CHECK(!occupied(*home, address) && !home->members.alive(id));
    CHECK(lock_take_as(second->members.id(), lock_at(*second, seen_second), second->members, -1) == Grant::owner_died);
    lock_drop(lock_at(*second, seen_second));
    check_sound(*home);
    bool refused = false;
    try {
        Space::proxy(home, uuid_of(2), false);
    } catch (const Error& error) {
        refused = error.code == Code::bad_input;
    }
    CHECK(refused);
    second.reset();
    CHECK(home->members.live_others() == 0);
    home->release(lock);
    home->remove("lock");
    check_sound(*home);
}

static void readers_do_not_write() {
    context = "readers do not write";
    Place place;
    auto home = place.open();
    put(*home, "it", SMALL, 1);
    auto reader = Space::proxy(home, uuid_of(3), true);
    CHECK(look_up(*reader, "it") == 1);
    bool refused = false;
    try {
        make(*reader, "other", SMALL, 1);
    } catch (const Error& error) {
        refused = error.code == Code::not_permitted;
    }
    CHECK(refused);
}

// The keeper is killed while two processes elsewhere hold arrays and a lock; one of them comes back.
static void adopted_after_a_kill() {
    context = "adopted after a kill";
    Place place;
    int ready[2];
    CHECK(pipe(ready) == 0);
    u64 addresses[2] = {}, id = 0;
    pid_t keeper = start([&] {
        auto home = place.open();
        auto living = Space::proxy(home, uuid_of(1), false), dying = Space::proxy(home, uuid_of(2), false);
        Held lock = make_lock(*living, "lock");
        CHECK(lock_take_as(living->members.id(), lock_at(*living, lock), living->members) == Grant::clean);
        u64 words[3] = {u64(living->bytes(make(*living, "", LARGE, 7, "a"))), u64(dying->bytes(make(*dying, "", LARGE, 8, "b"))), living->members.id()};
        CHECK(write(ready[1], words, sizeof words) == sizeof words);
        pause();
    });
    u64 words[3];
    CHECK(read(ready[0], words, sizeof words) == sizeof words);
    std::copy_n(words, 2, addresses);
    id = words[2];
    kill(keeper, SIGKILL);
    CHECK(killed(finish(keeper)));
    CHECK(live_members(place.directory) == 2);

    CHECK(returned(run([&] {  // somebody who is no keeper comes and goes between: nothing is lost, and nothing is sealed
        auto space = place.open();
        space->collect();
        CHECK(occupied(*space, addresses[0]) && occupied(*space, addresses[1]));
    })));
    auto home = place.open();
    CHECK(load(home->header().seal) == 0);
    CHECK(home->unclaimed().size() == 2);
    auto living = Space::proxy(home, uuid_of(1), false);
    CHECK(living->adopted() && living->members.id() == id);
    std::vector<Held> pins = living->pinned();
    CHECK(pins.size() == 2);
    const Held& array = living->record(pins[0]).kind == kind_array ? pins[0] : pins[1];
    const Held& lock = living->record(pins[0]).kind == kind_lock ? pins[0] : pins[1];
    CHECK(u64(living->bytes(array)) == addresses[0] && version_of(living->bytes(array), LARGE, hash_name("a")) == 7);
    CHECK(lock_take(lock_at(*living, lock), home->members, 50'000'000) == Grant::timed_out);  // still held
    Held fresh = make(*living, "", SMALL, 1);  // does not take a pin that is in use
    CHECK(fresh.pin != pins[0].pin && fresh.pin != pins[1].pin);
    living->release(fresh);
    CHECK(home->unclaimed() == std::vector<Uuid>{uuid_of(2)});
    CHECK(home->clear_unclaimed() == 1);
    CHECK(!occupied(*home, addresses[1]) && occupied(*home, addresses[0]));
    living->release(array);
    living->collect();
    CHECK(!occupied(*home, addresses[0]));
    living.reset();
    Held left = home->find("lock");
    CHECK(lock_take(lock_at(*home, left), home->members) == Grant::owner_died);
    home->release(left);
    check_sound(*home);
    close(ready[0]);
    close(ready[1]);
}

static void leaves_itself_to_the_next() {
    context = "leaves itself to the next";
    Place place;
    {
        auto home = place.open();
        auto proxy = Space::proxy(home, uuid_of(1), false);
        make(*proxy, "", SMALL, 3, "a");
        proxy->abandon();
    }
    auto home = place.open();
    auto proxy = Space::proxy(home, uuid_of(1), false);
    CHECK(proxy->adopted() && proxy->pinned().size() == 1);
    CHECK(version_of(proxy->bytes(proxy->pinned()[0]), SMALL, hash_name("a")) == 3);
    proxy.reset();
    check_sound(*home);
}

// The work of a process elsewhere, by its keeper.
static void work(Space& space) {
    for (const char* name : {"a", "b", "c"}) space.remove(name);
    put(space, "a", SMALL, 1);
    put(space, "a", LARGE, 2);
    Held held = space.find("a");
    space.rename("a", "b");
    space.remove("b");
    space.release(held);
    Held unnamed = make(space, "", SMALL, 1, "c");
    space.name(unnamed, "c");
    space.collect();
    space.release(unnamed);
    for (int number = 0; number < 40; number++) space.release(make(space, "", SMALL, 1, "d"));
}

// The keeper dies at every step of it. Its locks inside the space are found dead, though the member it acted for lives on.
static void killed_at_every_step(bool adopt) {
    long step = adopt;
    for (bool through = false; !through; step += UNDER_TSAN || UNDER_ASAN ? 13 : 3) {
        context = std::string(adopt ? "adopted" : "cleared") + " after a kill at step " + std::to_string(step);
        Place place(16 * MIB);
        int status = run([&] {
            auto home = place.open();
            auto proxy = Space::proxy(home, uuid_of(1), false);
            step_limit = step;
            work(*proxy);
            step_limit = -1;
        });
        CHECK(returned(status) || killed(status));
        through = returned(status);
        auto home = place.open();
        CHECK(home->unclaimed().size() == (through ? 0 : 1));
        if (adopt) {
            auto proxy = Space::proxy(home, uuid_of(1), false);
            work(*proxy);
            for (const Held& held : proxy->pinned()) proxy->release(held);
        } else {
            CHECK(home->clear_unclaimed() == (through ? 0 : 1));
        }
        work(*home);
        check_sound(*home);
        for (const Entry& entry : home->list("")) CHECK(look_up(*home, entry.name));
    }
    CHECK(step > 50);
}

int main() {
    several_in_one_process();
    readers_do_not_write();
    adopted_after_a_kill();
    leaves_itself_to_the_next();
    killed_at_every_step(true);
    killed_at_every_step(false);
    std::puts("proxy_test: passed");
}
