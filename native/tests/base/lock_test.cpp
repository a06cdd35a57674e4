// Locks, barriers and channels between processes, with and without deaths.
#include <set>
#include <thread>

#include "tests/check.hpp"

using namespace osf;
using namespace osf::test;

struct Shared {  // in an array's bytes
    Lock lock;
    u64 counter, inside, deaths;
    u32 started, finished;
};

static Held make_bytes(Space& space, const std::string& name, u64 nbytes) {
    Spec spec;
    spec.nbytes = nbytes;
    spec.name = name;
    Held held = space.make(spec, true);
    space.hand_out(held);
    space.publish(held, true);
    return held;
}

static void wait_for(const std::function<bool()>& done) {
    for (u64 start = now_ns(); !done();) {
        CHECK(now_ns() - start < 20'000'000'000ull);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
}

static void one_at_a_time() {
    context = "one at a time";
    Place place;
    auto space = place.open();
    Shared& shared = *reinterpret_cast<Shared*>(space->bytes(make_bytes(*space, "shared", sizeof(Shared))));
    constexpr int PROCESSES = 4, ROUNDS = 4000;
    std::vector<pid_t> children;
    for (int number = 0; number < PROCESSES; number++)
        children.push_back(start([&] {
            for (int round = 0; round < ROUNDS; round++) {
                CHECK(lock_take(shared.lock, space->members) == Grant::clean);
                CHECK(swap(shared.inside, 1) == 0);
                shared.counter++;
                if (round % 64 == 0) std::this_thread::yield();
                CHECK(swap(shared.inside, 0) == 1);
                lock_drop(shared.lock);
            }
        }));
    for (pid_t child : children) CHECK(returned(finish(child)));
    CHECK(shared.counter == PROCESSES * ROUNDS);
    CHECK((shared.lock.word & ~WAITERS) == 0);
}

// Owners are killed now and then while they hold it: the next learns of exactly those deaths.
static void death_hands_over() {
    context = "death hands over";
    Place place;
    auto space = place.open();
    Shared& shared = *reinterpret_cast<Shared*>(space->bytes(make_bytes(*space, "shared", sizeof(Shared))));
    constexpr int PROCESSES = 12, ROUNDS = 40;
    std::vector<pid_t> children;
    for (int number = 0; number < PROCESSES; number++)
        children.push_back(start([&, number] {
            for (int round = 0; round < ROUNDS; round++) {
                Grant grant = lock_take(shared.lock, space->members);
                if (grant == Grant::owner_died) shared.deaths++, store(shared.inside, 0);
                CHECK(swap(shared.inside, 1) == 0);
                shared.counter++;
                if (round == ROUNDS / 2 && number % 2) raise(SIGKILL);
                CHECK(swap(shared.inside, 0) == 1);
                lock_drop(shared.lock);
            }
        }));
    for (int number = 0; number < PROCESSES; number++) {
        int status = finish(children[number]);
        CHECK(number % 2 ? killed(status) : returned(status));
    }
    if (lock_take(shared.lock, space->members) == Grant::owner_died) shared.deaths++;
    lock_drop(shared.lock);
    CHECK(shared.deaths == PROCESSES / 2);
    CHECK(shared.counter == PROCESSES / 2 * ROUNDS + PROCESSES / 2 * (ROUNDS / 2 + 1));
}

static void waiting_ends_in_time() {
    context = "timeouts";
    Place place;
    auto space = place.open();
    Shared& shared = *reinterpret_cast<Shared*>(space->bytes(make_bytes(*space, "shared", sizeof(Shared))));
    pid_t owner = start([&] {
        lock_take(shared.lock, space->members);
        store(shared.started, 1u);
        wait_for([&] { return load(shared.finished) == 1; });
        lock_drop(shared.lock);
    });
    wait_for([&] { return load(shared.started) == 1; });
    CHECK(lock_take(shared.lock, space->members, 0) == Grant::timed_out);
    u64 start_ns = now_ns();
    CHECK(lock_take(shared.lock, space->members, 30'000'000) == Grant::timed_out);
    CHECK(now_ns() - start_ns >= 30'000'000);
    store(shared.finished, 1u);
    CHECK(lock_take(shared.lock, space->members, 10'000'000'000) == Grant::clean);
    lock_drop(shared.lock);
    CHECK(returned(finish(owner)));
}

static Barrier& make_barrier(Space& space, u32 parties) {
    Held held = make_bytes(space, "barrier", barrier_bytes(parties));
    Barrier& barrier = *reinterpret_cast<Barrier*>(space.bytes(held));
    barrier.parties = parties;
    return barrier;
}

static bool breaks(Space& space, Barrier& barrier, long timeout_ns) {
    try {
        barrier_wait(barrier, space.members, timeout_ns);
        return false;
    } catch (const Error& error) {
        CHECK(error.code == Code::broken_barrier);
        return true;
    }
}

static void barrier_keeps_step() {
    context = "barrier keeps step";
    Place place;
    auto space = place.open();
    constexpr u32 PARTIES = 4, ROUNDS = 200;
    Barrier& barrier = make_barrier(*space, PARTIES);
    u64* at = reinterpret_cast<u64*>(space->bytes(make_bytes(*space, "rounds", 8 * PARTIES)));
    std::vector<pid_t> children;
    for (u32 number = 0; number < PARTIES; number++)
        children.push_back(start([&, number] {
            for (u64 round = 1; round <= ROUNDS; round++) {
                store(at[number], round);
                CHECK(barrier_wait(barrier, space->members, -1) < PARTIES);
                for (u32 other = 0; other < PARTIES; other++) CHECK(load(at[other]) == round || load(at[other]) == round + 1);
            }
        }));
    for (pid_t child : children) CHECK(returned(finish(child)));
}

static void barrier_breaks() {
    context = "barrier breaks";
    Place place;
    auto space = place.open();
    Barrier& barrier = make_barrier(*space, 3);
    pid_t waiter = start([&] { CHECK(breaks(*space, barrier, -1)); });
    pid_t victim = start([&] { barrier_wait(barrier, space->members, -1); });
    wait_for([&] { return load(barrier.arrived) == 2; });
    kill(victim, SIGKILL);
    CHECK(killed(finish(victim)));
    CHECK(returned(finish(waiter)));
    CHECK(breaks(*space, barrier, -1));            // it stays broken
    barrier_reset(barrier, space->members);
    CHECK(breaks(*space, barrier, 20'000'000));    // alone: time runs out
    barrier_reset(barrier, space->members);
    std::vector<pid_t> children;
    for (int number = 0; number < 3; number++) children.push_back(start([&] { CHECK(!breaks(*space, barrier, -1)); }));
    for (pid_t child : children) CHECK(returned(finish(child)));
}

// A waiter that is slow to wake learns that its round broke, even if somebody has reset the barrier since.
static void reset_does_not_pass_waiters() {
    context = "reset does not pass waiters";
    Place place;
    auto space = place.open();
    Barrier& barrier = make_barrier(*space, 2);
    pid_t waiter = start([&] { CHECK(breaks(*space, barrier, -1)); });
    wait_for([&] { return load(barrier.arrived) == 1; });
    barrier_reset(barrier, space->members);
    CHECK(returned(finish(waiter)));
}

// The last to arrive is killed before it lets the others go: somebody in its place can.
static void last_arriver_dies() {
    for (long k = 0;; k++) {
        context = "last arriver dies at " + std::to_string(k);
        Place place;
        auto space = place.open();
        Barrier& barrier = make_barrier(*space, 2);
        pid_t waiter = start([&] { breaks(*space, barrier, -1); });
        wait_for([&] { return load(barrier.arrived) == 1; });
        int status = run([&] {
            step_limit = k;
            barrier_wait(barrier, space->members, -1);
            step_limit = -1;
        });
        if (killed(status)) breaks(*space, barrier, 300'000'000);  // either way nobody waits for ever
        CHECK(returned(finish(waiter)));
        if (returned(status)) break;
    }
}

static void every_message_once() {
    context = "every message once";
    Place place;
    auto space = place.open();
    Held channel = make_bytes(*space, "channel", channel_bytes(8, 64));
    reinterpret_cast<Channel*>(space->bytes(channel))->capacity = 8;
    reinterpret_cast<Channel*>(space->bytes(channel))->slot_bytes = 64;
    constexpr int SENDERS = 3, RECEIVERS = 3, EACH = UNDER_TSAN ? 100 : 300;
    u64* seen = reinterpret_cast<u64*>(space->bytes(make_bytes(*space, "seen", 8 * SENDERS * EACH)));
    std::vector<pid_t> children;
    for (int sender = 0; sender < SENDERS; sender++)
        children.push_back(start([&, sender] {
            for (int number = 0; number < EACH; number++) {
                u64 value = u64(sender * EACH + number);
                if (number % 3) {
                    CHECK(channel_send(*space, channel, {reinterpret_cast<char*>(&value), 8}, nullptr, -1));
                } else {
                    Held array = make(*space, "", SMALL, value + 1, "sent");
                    CHECK(channel_send(*space, channel, "", &array, -1));
                    space->release(array);
                }
            }
        }));
    for (int receiver = 0; receiver < RECEIVERS; receiver++)
        children.push_back(start([&] {
            for (int number = 0; number < SENDERS * EACH / RECEIVERS; number++) {
                Message message;
                CHECK(channel_receive(*space, channel, message, -1));
                u64 value = 0;
                if (message.kind == 0) {
                    CHECK(message.bytes.size() == 8);
                    std::memcpy(&value, message.bytes.data(), 8);
                } else {
                    CHECK(message.array);
                    value = u64(version_of(space->bytes(message.array), SMALL, hash_name("sent"))) - 1;
                    space->release(message.array);
                }
                CHECK(value < SENDERS * EACH && swap(seen[value], 1) == 0);
            }
        }));
    for (pid_t child : children) CHECK(returned(finish(child)));
    for (int value = 0; value < SENDERS * EACH; value++) CHECK(load(seen[value]) == 1);
    CHECK(channel_length(*space, channel) == 0);
    Message message;
    CHECK(!channel_receive(*space, channel, message, 1'000'000));
    check_sound(*space);
}

int main() {
    one_at_a_time();
    death_hands_over();
    waiting_ends_in_time();
    barrier_keeps_step();
    barrier_breaks();
    reset_does_not_pass_waiters();
    last_arriver_dies();
    every_message_once();
    return 0;
}
