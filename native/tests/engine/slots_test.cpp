// Which slots of flash are given out: never one that a unit, the last commit or the one under way refers to.
#include "engine/slots.hpp"

#include <set>
#include <unistd.h>

#include "tests/check.hpp"

using namespace osf;
using namespace osf::test;

namespace {

constexpr u64 UNITS = 32, SLOTS = 128, CAPACITY = 8;

struct Words {
    explicit Words(bool durable) {
        std::string pattern = "/dev/shm/osf-test-XXXXXX";
        CHECK(mkdtemp(pattern.data()) != nullptr);
        directory = pattern;
        TierWords::create(directory, {UNITS, CAPACITY, durable ? SLOTS : UNITS, {"/disk/a"}, durable, 77}, 0600);
        words = std::make_unique<TierWords>(directory, true);
    }
    ~Words() {
        ::unlink((directory + "/tiers").c_str());
        ::rmdir(directory.c_str());
    }
    Words(const Words&) = delete;
    Words& operator=(const Words&) = delete;
    void refer(u32 unit, u32 slot) const { words->at(unit).word = tier_word(slot == NO_SLOT ? Tier::empty : Tier::flash, 1, slot); }

    std::string directory;
    std::unique_ptr<TierWords> words;
};

u64 free_slots(Slots& slots) {  // takes them all
    u64 count = 0;
    while (slots.take(0, 1) != NO_SLOT) count++;
    return count;
}

void not_durable() {
    Words at(false);
    Slots slots(*at.words);
    slots.take_all_used();
    CHECK(slots.take(5, 4) == 5);
    slots.release(5);
    CHECK(slots.take(5, 4) == 5);
    CHECK(slots.take(14, 4) == NO_SLOT);  // the pieces of files end there
    CHECK(!slots.few());
}

void runs_are_apart() {
    Words at(true);
    at.refer(0, 3);
    Slots slots(*at.words);
    slots.take_all_used();
    std::set<u32> taken{3};
    for (u32 count : {16u, 8u, 4u, 16u, 2u, 1u, 16u}) {
        const u32 first = slots.take(0, count);
        CHECK(first != NO_SLOT && first / RUN == (first + count - 1) / RUN);
        for (u32 slot = first; slot < first + count; slot++) CHECK(taken.insert(slot).second);
    }
    CHECK(slots.few());
    CHECK(free_slots(slots) == SLOTS - taken.size());
}

// A unit's bytes are in slot 3, committed. They are written anew, to another slot.
void a_commit_gives_back(bool fails, bool in_doubt) {
    Words at(true);
    at.refer(0, 3);
    Slots slots(*at.words);
    slots.committed(3);
    slots.take_all_used();
    const u32 next = slots.take(0, 1);
    at.refer(0, next);
    slots.release(3);
    slots.committing(next);
    Slots now = slots;
    CHECK(free_slots(now) == SLOTS - 2);
    if (fails) slots.commit_failed(in_doubt);
    else slots.commit_done();
    Slots after = slots;
    CHECK(free_slots(after) == (fails ? SLOTS - 2 : SLOTS - 1));
    at.refer(0, NO_SLOT);  // and forgotten: whoever keeps a slot keeps it
    slots.release(next);
    CHECK(free_slots(slots) == (!fails ? SLOTS - 1 : in_doubt ? SLOTS - 2 : SLOTS - 1));
}

}  // namespace

int main() {
    not_durable();
    runs_are_apart();
    a_commit_gives_back(false, false);
    a_commit_gives_back(true, false);
    a_commit_gives_back(true, true);
}
