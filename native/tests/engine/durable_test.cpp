// The power goes at every operation of the disk in turn: whatever was not synced is dropped, torn or reordered. What is restored
// is, whole, the state of the last flush() that returned, or of the one that was under way; and it can be gone on with.
#include "tests/engine/rig.hpp"

using namespace osf;
using namespace osf::test;

constexpr u64 UNITS = 32, USED = 28, CAPACITY = 12, SLOTS = 220;
static const std::vector<std::string> FILES{"/flash/one", "/flash/two"};

using Model = std::map<u32, u64>;  // unit: version

struct History {
    SimDisk disk;
    std::mt19937_64 random;
    Model now, flushed, trying;
    bool tries = false;
    u64 flushes = 0;

    explicit History(u64 seed) : disk(seed), random(seed) {}

    // False: the disk has failed, and with it the power.
    bool step(Rig& rig) {
        const u32 unit = u32(random() % USED);
        const u64 what = random() % 10;
        if (what < 5) {
            const u64 id = rig.ask(Want::pin, unit);
            if (!rig.wait(id).good) return false;
            const u64 version = now[unit] + 1;
            for (u64 at = 0; at < UNIT / 8; at++)  // a process without faults, while the keeper may be copying it
                store(reinterpret_cast<u64*>(rig.bytes(unit))[at], content_word(unit + 1, version, at), std::memory_order_relaxed);
            rig.engine->unpin(rig.client, id);
            now[unit] = version;
            return true;
        }
        if (what < 8) return rig.request(Want::demote, unit).good;
        trying = now;
        tries = true;
        if (!rig.request(Want::flush, 0).good) return false;
        flushed = now;
        tries = false;
        flushes++;
        return true;
    }

    static Model read(Rig& rig) {
        Model found;
        for (u32 unit = 0; unit < USED; unit++)
            rig.pinned(unit, [&](char* at) {
                if (std::all_of(at, at + UNIT, [](char byte) { return byte == 0; })) return;
                const long version = version_of(at, UNIT, unit + 1);
                CHECK(version > 0);
                found[unit] = u64(version);
            });
        return found;
    }
};

// True: the history came to its end before the power went.
static bool cut(u64 seed, long operation, u64& cuts) {
    context = "seed " + std::to_string(seed) + ", operation " + std::to_string(operation);
    History history(seed);
    bool whole = true;
    {
        TierPlace place(history.disk, FILES, UNITS, CAPACITY, SLOTS);
        Rig rig(history.disk, place, USED, 2);
        history.disk.fail_after(operation, EIO, 1);
        for (int count = 0; count < 40 && whole; count++) whole = history.step(rig);
    }
    history.disk.heal();
    history.disk.power_cut(history.random);
    cuts++;
    for (int again = 0; again < 2; again++) {
        std::unique_ptr<TierPlace> place;
        try {
            place = std::make_unique<TierPlace>(history.disk, FILES, CAPACITY);
        } catch (const Error& error) {
            if (history.flushes) failed(__FILE__, __LINE__, error.what());
            return whole;  // nothing was promised yet
        }
        Rig rig(history.disk, *place, USED, 2);
        const Model found = History::read(rig);
        if (found != history.flushed && !(history.tries && found == history.trying)) {
            std::string told = "restored " + std::to_string(again) + " after " + std::to_string(history.flushes) + " flushes:";
            for (u32 unit = 0; unit < USED; unit++) {
                auto version = [&](const Model& model) { auto at = model.find(unit); return std::to_string(at == model.end() ? 0 : at->second); };
                if (version(found) != version(history.flushed)) told += " " + std::to_string(unit) + ": " + version(found) + " flushed " + version(history.flushed) + " trying " + version(history.trying);
            }
            failed(__FILE__, __LINE__, told);
        }
        // From there on as if nothing had happened
        history.now = history.flushed = found;
        history.tries = false;
        for (int count = 0; count < 12; count++) CHECK(history.step(rig));
        if (again) break;
        rig.engine.reset();
        history.disk.power_cut(history.random);
    }
    return whole;
}

int main() {
    u64 cuts = 0;
    const bool soak = std::getenv("OPENSHELF_SOAK") != nullptr;
    const u64 seeds = soak ? 40 : UNDER_ASAN || UNDER_TSAN ? 1 : 3;
    const long stride = UNDER_ASAN || UNDER_TSAN ? 5 : 1;
    for (u64 seed = 1; seed <= seeds; seed++)
        for (long operation = 1; !cut(seed, operation, cuts); operation += stride) {}
    std::printf("%llu power cuts\n", (unsigned long long)cuts);
    return 0;
}
