// What survives a keeper, in the files: a unit that came back is the home's from the moment that somebody there may have read it.
#include "coherence/segments.hpp"

#include <unistd.h>

#include "tests/check.hpp"

using namespace osf;
using namespace osf::test;

constexpr u64 UNIT_BYTES = 64 * KIB, SEGMENT = 16 * MIB, UNITS = 8;
constexpr u32 HOME = 0, BORROWER = 1;

static std::vector<char> unit_of(char value) { return std::vector<char>(UNIT_BYTES, value); }

static char seen(const Segments& segments, u64 unit) {
    const char* bytes = segments.bytes(Source::own, HOME, unit, 0);
    for (u64 at = 0; at < UNIT_BYTES; at++) CHECK(bytes[at] == bytes[0]);
    return bytes[0];
}

// As a keeper does it: what was lent is in the shadow, and out of the file.
static void lend(Segments& segments, u64 unit) {
    segments.fill(HOME, unit, unit_of('1').data());
    segments.save(unit);
    segments.set_word(HOME, unit, home_word(lent, BORROWER, 0));
    segments.punch(HOME, unit);
}

int main() {
    Place place;
    const std::string& directory = place.directory;
    {
        Segments segments(directory, HOME, 2, SEGMENT, UNIT_BYTES);
        for (u64 unit = 0; unit < UNITS; unit++) {
            lend(segments, unit);
            segments.keep_returned(unit, unit_of('2').data());
        }
        for (u64 unit = 0; unit < 4; unit++) {      // these came back as a whole
            segments.fill(HOME, unit, unit_of('2').data());
            segments.set_word(HOME, unit, 0);
            CHECK(!(segments.word(HOME, unit) & RETURNED) && seen(segments, unit) == '2');
        }
        segments.keep_returned(4, unit_of('3').data());  // it was sent again
        CHECK(home_state(segments.word(HOME, 4)) == lent && owner_of(segments.word(HOME, 4)) == BORROWER);
        segments.restore(5);                        // the borrower is lost meanwhile
        CHECK(seen(segments, 5) == '2');
        segments.set_word(HOME, 5, 0);
        lend(segments, 7);                          // nothing of this one has come back
        segments.restore(7);
        CHECK(seen(segments, 7) == '1');
        segments.set_word(HOME, 7, home_word(lent, BORROWER, 0));
    }
    {   // the keeper was killed; the next one
        Segments segments(directory, HOME, 2, SEGMENT, UNIT_BYTES);
        segments.tidy(HOME);
        for (u64 unit : {4, 6}) {
            CHECK(seen(segments, unit) == (unit == 4 ? '3' : '2'));
            CHECK(segments.word(HOME, unit) == home_word(home_shared, 0, 1u << BORROWER));  // it says whether it has a copy when it is met
        }
        CHECK(home_state(segments.word(HOME, 7)) == lent);
        segments.restore(7);
        CHECK(seen(segments, 7) == '1');
    }
    for (const char* file : {"units", "shadow", "escrow", "cache-1"}) ::unlink((directory + "/" + file).c_str());
    return 0;
}
