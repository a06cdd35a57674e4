// Journals with damage: bits flipped, sectors lost, swapped and doubled, files cut short, bytes of other files. Recovery says corrupt,
// or gives the state before the damage where that cannot be told from a commit that never ended; never anything else.
#include <algorithm>

#include "tests/tiers/journal_model.hpp"

using namespace osf;
using namespace osf::test;

constexpr u64 LESS = UNDER_ASAN || UNDER_TSAN ? 8 : 1;
static const std::string PATH = "dir/space";

// A file with a checkpoint and some transactions, and where each ends. The sizes are those of docs/formats/tiers.md, not of the code.
struct Log {
    SimDisk disk;
    std::string name;
    std::vector<char> bytes;
    std::vector<u64> ends;      // of the checkpoint, then of each transaction
    std::vector<Model> states;  // after each

    Log(u64 seed, u64 transactions) : disk(seed) {
        Random random(seed);
        Pair pair(disk);
        pair.create();
        for (u64 commits = 0; states.size() < transactions + 1 || commits < 12; commits++) {
            const Model before = pair.last;
            pair.commit(some_commit(random, before, 8));
            CHECK(disk.names().size() == 1);
            if (*disk.names().begin() != name) {
                name = *disk.names().begin();
                states = {before};
                ends = {SECTOR + (64 + before.size() * 16 + 4095) / 4096 * 4096 + before.size() * 4096};
            }
            states.push_back(pair.last);
            ends.push_back(disk.written(name));
        }
        bytes = disk.content(name);
    }
    u64 head(u64 transaction) const { return ends[transaction - 1]; }
};

constexpr int CORRUPT = -1;

// What must come: the number of a state, or CORRUPT.
static int expected(const Log& log, const std::vector<char>& damaged) {
    auto same = [&](u64 from, u64 to) {
        return to <= damaged.size() && std::equal(log.bytes.begin() + long(from), log.bytes.begin() + long(to), damaged.begin() + long(from));
    };
    if (!same(0, log.ends[0])) return CORRUPT;
    for (u64 first = 1; first < log.ends.size(); first++) {
        if (same(log.head(first), log.ends[first])) continue;
        for (u64 later = first + 1; later < log.ends.size(); later++)  // a head that is whole, in a sector that is there
            if (same(log.head(later), log.head(later) + 64) && damaged.size() >= log.head(later) + SECTOR) return CORRUPT;
        return int(first) - 1;
    }
    return int(log.ends.size()) - 1;
}

static long tried = 0, corrupts = 0, earlier = 0;

static void check(Log& log, const std::vector<char>& damaged) {
    const int state = expected(log, damaged);
    log.disk.replace(log.name, damaged);
    Journal journal(log.disk, PATH, STEP);
    tried++;
    try {
        journal.recover();
    } catch (const Error& error) {
        const std::string text = error.what();
        CHECK(error.code == Code::corrupt && state == CORRUPT && text.find(log.name) != std::string::npos);
        CHECK(image_of(journal).empty() && journal.generation() == 0);
        corrupts++;
        return;
    }
    CHECK(state != CORRUPT && image_of(journal) == log.states[u64(state)]);
    if (u64(state) + 1 == log.states.size()) return;
    earlier++;
    Commit{{{3, 9}}, false}.run(journal);  // and what is behind the end now never comes back
    Journal again(log.disk, PATH, STEP);
    again.recover();
    CHECK(image_of(again) == (Commit{{{3, 9}}, false}.after(log.states[u64(state)])));
    again.remove();  // the file as it was
    int none = 0;
    log.disk.open(log.name, Disk::fresh, true, none);
}

// Every bit of the heads and the beginnings of lists, some of every sector.
static void flips(u64 seed) {
    Log log(seed, 4);
    Random random(seed);
    std::vector<char> damaged = log.bytes;
    for (u64 sector = 0; sector < damaged.size(); sector += SECTOR) {
        const bool head = sector == 0 || sector == SECTOR || std::find(log.ends.begin(), log.ends.end(), sector) != log.ends.end();
        for (u64 bit = 0; bit < (head ? 96 * 8 : 8); bit++) {
            const u64 at = sector + (head ? bit / 8 : random() % SECTOR);
            context = "seed " + std::to_string(seed) + ", bit " + std::to_string(bit % 8) + " of byte " + std::to_string(at);
            damaged[at] ^= char(1 << bit % 8);
            check(log, damaged);
            damaged[at] = log.bytes[at];
        }
    }
}

static void damage(std::vector<char>& bytes, const std::vector<char>& other, Random& random) {
    if (bytes.empty()) return;
    auto sector = [&] { return random() % div_up(bytes.size(), SECTOR) * SECTOR; };
    const u64 a = sector(), b = sector(), length_a = std::min(SECTOR, bytes.size() - a), length = std::min(length_a, bytes.size() - b);
    const auto first = bytes.begin() + long(a), second = bytes.begin() + long(b);
    switch (random() % 9) {
        case 0: bytes[random() % bytes.size()] ^= char(1 << random() % 8); break;
        case 1: bytes[a + random() % std::min<u64>(length_a, 128)] = char(random()); break;
        case 2: std::fill_n(first, length_a, char(0)); break;
        case 3: std::generate_n(first, length_a, [&] { return char(random()); }); break;
        case 4: if (a != b) std::swap_ranges(first, first + long(length), second); break;
        case 5: if (a != b) std::copy_n(first, length, second); break;
        case 6: bytes.resize(random() % 4 ? a : random() % bytes.size()); break;
        case 7: {  // the rest is another journal's; all of it would be a valid one
            bytes.resize(std::max(bytes.size(), other.size()));
            const u64 from = std::clamp(a, SECTOR, other.size());
            std::copy(other.begin() + long(from), other.end(), bytes.begin() + long(from));
            break;
        }
        case 8: std::fill(std::min(first, second), std::max(first, second), char(random() % 2)); break;
    }
}

static void fuzz(u64 seed, long times) {
    Log log(seed, 1 + seed % 6), other(seed + 500, 3);
    Random random(seed);
    for (long time = 0; time < times; time++) {
        context = "fuzz, seed " + std::to_string(seed) + ", time " + std::to_string(time);
        std::vector<char> damaged = log.bytes;
        for (u64 count = 1 + (random() % 3 == 0) * (random() % 4); count > 0; count--) damage(damaged, other.bytes, random);
        check(log, damaged);
    }
}

// A file system that shows what a removed journal left on the same blocks: its transactions are not this file's.
static void stale_bytes_are_not_valid() {
    for (u64 seed = 1; seed <= 40; seed++) {
        context = "stale bytes, seed " + std::to_string(seed);
        Log log(seed, 2), same(seed, 2);  // the same history, another random id
        CHECK(log.ends == same.ends && log.states == same.states && log.bytes != same.bytes);
        for (u64 cut = 0; cut < log.ends.size(); cut++) {
            Log young(seed, 2);
            std::vector<char> bytes = young.bytes;
            std::copy(same.bytes.begin() + long(young.ends[cut]), same.bytes.end(), bytes.begin() + long(young.ends[cut]));
            check(young, bytes);
        }
    }
}

// Both files are there, since the older was not removed. The newer counts; if it is damaged, the older is no way out.
static void two_files() {
    context = "two files";
    for (u64 seed = 1; seed <= 20; seed++) {
        Log log(seed, 2);
        const std::string older = PATH + ".journal." + (log.name.back() == '0' ? "1" : "0");
        Journal journal(log.disk, PATH, STEP);
        journal.recover();
        Commit{{{1, 1}}, true}.run(journal);  // the new file has the other name
        const std::vector<char> newer = log.disk.content(older);
        int error = 0;
        CHECK(log.disk.open(log.name, Disk::fresh, true, error));
        log.disk.replace(log.name, log.bytes);

        auto recovered = [&] {
            Journal again(log.disk, PATH, STEP);
            again.recover();
            return image_of(again);
        };
        CHECK(recovered() == (Model{{1, 1}}));
        std::vector<char> damaged = log.bytes;
        damaged[log.ends[0] + 70] ^= 1;  // in the older: nobody reads it
        log.disk.replace(log.name, damaged);
        CHECK(recovered() == (Model{{1, 1}}));
        log.disk.replace(log.name, log.bytes);
        for (u64 at : {u64(3), u64(17), u64(2000), SECTOR + 9, SECTOR + 2000}) {
            damaged = newer;
            damaged[at] ^= 16;
            log.disk.replace(older, damaged);
            bool corrupt = false;
            try {
                recovered();
            } catch (const Error& failure) {
                corrupt = failure.code == Code::corrupt && std::string(failure.what()).find(older) != std::string::npos;
            }
            CHECK(corrupt);
        }
        log.disk.replace(older, newer);
        Journal last(log.disk, PATH, STEP);
        last.recover();
        Commit{{{2, 2}}, false}.run(last);  // takes the older one's name, removes the other
        CHECK(log.disk.names() == std::set<std::string>{log.name} && recovered() == (Model{{1, 1}, {2, 2}}));
    }
}

int main() {
    two_files();
    stale_bytes_are_not_valid();
    for (u64 seed = 1; seed <= (LESS > 1 ? 1 : 4); seed++) flips(seed);
    std::printf("flips: %ld tried, %ld corrupt, %ld the state before\n", tried, corrupts, earlier);
    tried = corrupts = earlier = 0;
    for (u64 seed = 1; seed <= 40; seed++) fuzz(seed, 500 / long(LESS));
    std::printf("fuzz:  %ld tried, %ld corrupt, %ld a state before\n", tried, corrupts, earlier);
    return 0;
}
