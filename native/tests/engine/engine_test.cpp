// The engine of tiers in one process: requests and pressure, every read and write failing once, what a dead keeper left under way
// at every step, and orders of events that are rare otherwise.
#include <sys/mman.h>

#include "tests/engine/rig.hpp"

using namespace osf;
using namespace osf::test;

constexpr u64 UNITS = 192, CAPACITY = 64;
constexpr u32 USED = 160;
constexpr bool SLOW = UNDER_ASAN || UNDER_TSAN;
static const std::vector<std::string> FILES{"/flash/one", "/flash/two"};

struct World {
    GateDisk disk;
    TierPlace place;
    Rig rig;
    explicit World(u32 threads = 4) : place(disk, FILES, UNITS, CAPACITY), rig(disk, place, USED, threads) {}
    ~World() { disk.open_gate(); }
};

static void more_than_memory_comes_back() {
    World world;
    Rig& rig = world.rig;
    for (u64 version = 1; version <= 2; version++) {
        for (u32 unit = 0; unit < USED; unit++) rig.write(unit, version);
        rig.engine->wait_idle();
        CHECK(load(rig.engine->words().head().resident) <= CAPACITY);
        for (u32 unit = 0; unit < USED; unit++) rig.check(unit, version);
    }
    rig.good(Want::demote, 0, USED);
    for (u32 unit = 0; unit < USED; unit++) CHECK(rig.tier(unit) == Tier::flash);
    rig.good(Want::prefetch, 8, 40);
    for (u32 unit = 8; unit < 48; unit++) CHECK(rig.tier(unit) == Tier::clean);
    CHECK(rig.request(Want::prefetch, 0, USED).text.starts_with("no_room:"));
    CHECK(rig.request(Want::pin, 0, USED).text.starts_with("no_room:"));
    CHECK(load(rig.engine->words().head().pinned) == 0);
    rig.good(Want::discard, 0, 16);
    for (u32 unit = 0; unit < 16; unit++) rig.check_zero(unit);
    for (u32 unit = 16; unit < USED; unit++) rig.check(unit, 2);
}

static void pinned_units_stay() {
    World world;
    Rig& rig = world.rig;
    for (u32 unit = 0; unit < 8; unit++) rig.write(unit, 1);
    const u64 pin = rig.ask(Want::pin, 0, 8);
    CHECK(rig.wait(pin).good);
    for (u32 unit = 8; unit < USED; unit++) rig.write(unit, 1);
    for (u32 unit = 0; unit < 8; unit++) CHECK(in_memory(rig.tier(unit)));
    CHECK(rig.request(Want::demote, 0, 4).text.starts_with("not_permitted:"));
    rig.engine->unpin(rig.client, pin);
    rig.good(Want::demote, 0, 8);
    for (u32 unit = 0; unit < USED; unit++) rig.check(unit, 1);
}

// One operation of the disk fails: at most one request says so, with the file and the array, and nothing is lost.
static void every_operation_fails_once(int error) {
    for (long at = 1;; at++) {
        World world;
        Rig& rig = world.rig;
        constexpr u32 COUNT = 6;
        for (u32 unit = 0; unit < COUNT; unit++) rig.write(unit * 20, 1);
        const long before = world.disk.operations();
        int refused = 0;
        auto judge = [&](const Answer& answer) {
            if (answer.good) return;
            refused++;
            CHECK(answer.text.starts_with(error == ENOSPC && answer.text.starts_with("no_room:") ? "no_room:" : "flash:"));
            CHECK(answer.text.find("/flash/") != std::string::npos && answer.text.find("'array'") != std::string::npos);
        };
        world.disk.fail_after(at, error);
        for (u32 unit = 0; unit < COUNT; unit++) judge(rig.request(Want::demote, unit * 20));
        for (u32 unit = 0; unit < COUNT; unit++) judge(rig.request(Want::prefetch, unit * 20));
        world.disk.heal();
        CHECK(refused <= 1);
        for (u32 unit = 0; unit < COUNT; unit++) rig.check(unit * 20, 1);
        for (u32 unit = 0; unit < COUNT; unit++) rig.good(Want::demote, unit * 20);
        for (u32 unit = 0; unit < COUNT; unit++) rig.check(unit * 20, 1);
        if (!refused && world.disk.operations() - before >= COUNT && at > 2 * long(COUNT)) return;
    }
}

// For some time nothing can be written: what is dirty stays, what is asked for is refused or is more than memory was meant for.
static void writes_fail_for_a_while(int error) {
    World world;
    Rig& rig = world.rig;
    for (u32 unit = 0; unit < CAPACITY / 2; unit++) rig.write(unit, 1);
    world.disk.fail_after(1, error, 1);
    CHECK(!rig.request(Want::demote, 0, 4).good);
    u32 done = CAPACITY / 2;
    for (; done < USED; done++) {
        const u64 id = rig.ask(Want::pin, done);
        const Answer answer = rig.wait(id);
        if (!answer.good) break;
        fill(rig.bytes(done), UNIT, done + 1, 1);
        rig.engine->unpin(rig.client, id);
    }
    CHECK(done < USED);
    for (u32 unit = 0; unit < done; unit++) CHECK(version_of(rig.bytes(unit), UNIT, unit + 1) == 1);
    world.disk.heal();
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    for (u32 unit = done; unit < USED; unit++) rig.write(unit, 1);
    for (u32 unit = 0; unit < USED; unit++) rig.check(unit, 1);
}

static void damage_is_found(bool truncate) {
    World world;
    Rig& rig = world.rig;
    for (u32 unit = 0; unit < 48; unit++) rig.write(unit, 1);
    rig.good(Want::demote, 0, 48);
    const u32 bad = 21;
    const u64 slot = rig.first + bad, file = slot / RUN % 2;
    const u64 at = SECTOR + (slot / RUN / 2 * RUN + slot % RUN) * UNIT;
    std::vector<char> bytes = world.disk.content(FILES[file]);
    if (truncate) bytes.resize(at + UNIT / 2);
    else bytes[at + 5000] ^= 1;
    world.disk.replace(FILES[file], bytes);
    const Answer answer = rig.request(Want::prefetch, bad - 2, 5);
    CHECK(!answer.good && answer.text.starts_with(truncate ? "flash:" : "corrupt:") && answer.text.find("'array'") != std::string::npos);
    for (u32 unit = 0; unit < 48; unit++) {
        if ((rig.first + unit) / RUN % 2 == file && (truncate ? unit >= bad : unit == bad)) {
            const u64 pin = rig.ask(Want::pin, unit);
            CHECK(!rig.wait(pin).good && rig.tier(unit) == Tier::flash);
        } else {
            rig.check(unit, 1);
        }
    }
    CHECK(load(rig.engine->words().head().pinned) == 0);
    rig.good(Want::discard, bad);
    rig.check_zero(bad);
}

// What the words can say when a keeper is killed, and what it had done of it.
static void next_keeper_finds_what_was_under_way() {
    World world;
    Rig& rig = world.rig;
    auto state = [&](TierWords& words, u32 unit, Tier tier) { store(words.at(rig.first + unit).word, with_tier(words.at(rig.first + unit).word, tier)); };
    for (u32 unit = 0; unit < 8; unit++) rig.write(unit, 1);
    rig.good(Want::demote, 0, 8);
    rig.write(4, 2);
    rig.write(5, 2);
    rig.good(Want::prefetch, 6, 2);
    rig.restart([&](TierWords& words) {
        std::memset(rig.bytes(0), 7, UNIT / 2);  // half of it was read
        state(words, 0, Tier::filling);
        state(words, 1, Tier::filling);
        std::memset(rig.bytes(20), 0, UNIT);     // memory for zeros was there
        state(words, 20, Tier::filling);
        state(words, 4, Tier::writing);
        state(words, 6, Tier::dropping);
        state(words, 5, Tier::discarding);
        state(words, 2, Tier::discarding);
    });
    CHECK(rig.tier(0) == Tier::flash && rig.tier(1) == Tier::flash && rig.tier(20) == Tier::empty);
    CHECK(rig.tier(4) == Tier::dirty && rig.tier(6) == Tier::flash && rig.tier(7) == Tier::clean);
    CHECK(rig.tier(5) == Tier::empty && rig.tier(2) == Tier::empty);
    for (u32 unit : {0, 1, 3, 6, 7}) rig.check(unit, 1);
    rig.check(4, 2);
    for (u32 unit : {2, 5, 20}) rig.check_zero(unit);
    rig.good(Want::demote, 0, 24);
    rig.check(4, 2);
    rig.check(7, 1);
    check_sound(*rig.space);
}

static void higher_priority_first() {
    World world(1);
    Rig& rig = world.rig;
    for (u32 unit = 0; unit < 48; unit++) rig.write(unit, 1);
    rig.good(Want::demote, 0, 48);
    world.disk.close_gate(true, false);
    rig.order.clear();
    std::vector<u64> ids;
    for (u32 number = 0; number < 20; number++) ids.push_back(rig.ask(Want::prefetch, number * 2, 1, 0));  // more than are begun at once
    const u64 low = rig.ask(Want::prefetch, 40, 1, -1), high = rig.ask(Want::prefetch, 42, 1, 5), later = rig.ask(Want::prefetch, 44);
    const u64 cancelled = rig.ask(Want::prefetch, 46);
    rig.engine->reorder(rig.client, later, 9);
    rig.engine->cancel(rig.client, cancelled);
    world.disk.open_gate();
    CHECK(rig.wait(cancelled).text.starts_with("cancelled:"));
    for (u64 id : ids) CHECK(rig.wait(id).good);
    for (u64 id : {low, high, later}) CHECK(rig.wait(id).good);
    auto place = [&](u64 id) { return std::find(rig.order.begin(), rig.order.end(), id) - rig.order.begin(); };
    CHECK(place(later) < place(high) && place(high) < place(ids.back()) && place(ids.back()) < place(low));
    CHECK(rig.tier(46) == Tier::flash);
}

static void cancelled_pin_is_not_held() {
    World world;
    Rig& rig = world.rig;
    rig.write(3, 1);
    rig.good(Want::demote, 3);
    world.disk.close_gate(true, false);
    const u64 pin = rig.ask(Want::pin, 3);
    world.disk.await_waiting(1);
    rig.engine->cancel(rig.client, pin);
    world.disk.open_gate();
    CHECK(rig.wait(pin).text.starts_with("cancelled:"));
    CHECK(load(rig.engine->words().head().pinned) == 0);
    rig.good(Want::demote, 3);
    rig.check(3, 1);
}

// A process without faults pins, writes and lets go, all while an older version is on its way to flash.
static void stores_while_a_unit_is_written_are_kept() {
    World world;
    Rig& rig = world.rig;
    rig.write(3, 1);
    world.disk.close_gate(false, true);
    const u64 demote = rig.ask(Want::demote, 3);
    world.disk.await_waiting(1);
    rig.write(3, 2);
    world.disk.open_gate();
    rig.wait(demote);
    rig.check(3, 2);
    rig.good(Want::demote, 3);
    rig.check(3, 2);
}

// A write that failed may have left anything in the slot, also where memory has the old bytes again.
static void slot_of_a_failed_write_is_not_trusted() {
    for (int error : {EIO, SimDisk::SHORT}) {
        World world;
        Rig& rig = world.rig;
        rig.write(3, 1);
        rig.good(Want::demote, 3);
        rig.write(3, 2);  // clean when it came: nobody saw that it changed
        world.disk.fail_after(1, error, 1);
        CHECK(!rig.request(Want::demote, 3).good);
        world.disk.heal();
        rig.write(3, 1);
        rig.good(Want::demote, 3);
        rig.check(3, 1);
    }
}

// The first process to touch a unit goes while there is no room; the second one's touch waits for the same unit.
static void touch_does_not_depend_on_who_was_first() {
    World world;
    Rig& rig = world.rig;
    for (u32 unit = 0; unit < USED; unit++) rig.write(unit, 1);
    const u32 other = rig.attach();
    CHECK(rig.engine->settle());
    u32 wanted = 0;
    while (rig.tier(wanted) != Tier::flash) wanted++;
    world.disk.close_gate(false, true);
    std::vector<u64> ids;
    for (u32 unit = wanted + 1; unit < USED && ids.size() < CAPACITY / 2; unit++)
        if (rig.tier(unit) == Tier::flash) ids.push_back(rig.ask(Want::prefetch, unit));
    world.disk.await_waiting(1);
    for (int tries = 0; load(rig.engine->words().head().resident) < CAPACITY && tries < 2000; tries++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    rig.engine->touch(other, u64(rig.bytes(wanted)), false);
    rig.engine->touch(rig.client, u64(rig.bytes(wanted)), false);
    rig.engine->detach(other);
    CHECK(rig.engine->settle());
    world.disk.open_gate();
    for (u64 id : ids) rig.wait(id);
    for (int tries = 0; !in_memory(rig.tier(wanted)); tries++) {
        CHECK(tries < 10'000);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    rig.check(wanted, 1);
}

// What was demoted while it came in leaves as well.
static void demotion_overtakes_no_read() {
    World world;
    Rig& rig = world.rig;
    rig.write(3, 1);
    rig.good(Want::demote, 3);
    world.disk.close_gate(true, false);
    const u64 fetch = rig.ask(Want::prefetch, 3);
    world.disk.await_waiting(1);
    const u64 demote = rig.ask(Want::demote, 3);
    world.disk.open_gate();
    CHECK(rig.wait(fetch).good && rig.wait(demote).good);
    CHECK(rig.tier(3) == Tier::flash);
    rig.check(3, 1);
}

// The process with the engine is killed at any moment, and the next one goes on, with a real file. What was acknowledged is there.
static void killed_at_any_moment(int rounds) {
    std::string flash = "/dev/shm/osf-flash-" + std::to_string(getpid());
    struct Ledger { u64 begun[USED], acked[USED]; };
    auto* ledger = static_cast<Ledger*>(mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    TierPlace place(real_disk(), {flash}, UNITS, CAPACITY);
    auto life = [&](u64 seed, bool last) {
        Rig rig(real_disk(), place, USED);
        std::mt19937_64 random(seed);
        auto check = [&](u32 unit) {
            if (ledger->begun[unit] != ledger->acked[unit]) return;  // killed in the middle of the bytes
            if (ledger->acked[unit]) rig.check(unit, ledger->acked[unit]);
            else rig.check_zero(unit);
        };
        if (last)
            for (u32 unit = 0; unit < USED; unit++) check(unit);
        for (int step = 0; !last || step < 200; step++) {
            const u32 unit = u32(random() % USED), count = u32(1 + random() % std::min<u64>(20, USED - unit));
            switch (random() % 6) {
                case 0:
                case 1:
                    store(ledger->begun[unit], ledger->begun[unit] + 1);
                    rig.write(unit, ledger->begun[unit]);
                    store(ledger->acked[unit], ledger->begun[unit]);
                    break;
                case 2: check(unit); break;
                case 3: rig.ask(Want::demote, unit, count); break;
                case 4: rig.ask(Want::prefetch, unit, count); break;
                default:
                    for (u32 at = unit; at < unit + count; at++) check(at);
            }
        }
        if (last) check_sound(*rig.space);
    };
    std::mt19937_64 random(5);
    for (int round = 0; round < rounds; round++) {
        pid_t child = start([&] { life(u64(round), false); });
        usleep(useconds_t((SLOW ? 100'000 : 5'000) + random() % 20'000));
        kill(child, SIGKILL);
        CHECK(killed(finish(child)));
    }
    CHECK(returned(run([&] { life(999, true); })));
    ::unlink(flash.c_str());
    munmap(ledger, sizeof(Ledger));
}

#define TRY(what) (context = #what, what)

int main() {
    if (!UNDER_TSAN) TRY(killed_at_any_moment(SLOW ? 10 : 60));  // before there are threads: it forks
    TRY(more_than_memory_comes_back());
    TRY(pinned_units_stay());
    for (int error : {EIO, ENOSPC, SimDisk::SHORT}) {
        TRY(every_operation_fails_once(error));
        TRY(writes_fail_for_a_while(error));
    }
    TRY(damage_is_found(false));
    TRY(damage_is_found(true));
    TRY(next_keeper_finds_what_was_under_way());
    TRY(higher_priority_first());
    TRY(cancelled_pin_is_not_held());
    TRY(stores_while_a_unit_is_written_are_kept());
    TRY(slot_of_a_failed_write_is_not_trusted());
    TRY(touch_does_not_depend_on_who_was_first());
    TRY(demotion_overtakes_no_read());
    return 0;
}
