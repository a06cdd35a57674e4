// Touches of one process in rising order, followed by reads of what comes next. A stream knows which unit it expects to see touched.
// While it is young, what was read ahead is left out of the page tables, so that every touch is seen, and one that is out of order
// ends it: among random touches of neighbours no stream grows old. Later all is shown at once but for one unit in the middle of
// what was read last: its touch says that the reader goes on. Where only misses are seen (Abilities::minor), a stream expects the next one
// behind what was read ahead.
#pragma once

#include "engine/units.hpp"

namespace osf::engine {

struct Ahead {                               // to be read
    u32 first = 0, last = 0;                 // none, if they are the same
    u32 skip = NO_UNIT;                      // stays out of the page tables, to notice when it is touched
    bool zeros = false, young = false;       // also what is empty; and all of it stays out of the page tables
};

class Streams {
public:
    struct Stream { u32 next = NO_UNIT, end = 0, first = 0; u64 used = 0; bool zeros = false; };  // next: the unit whose touch it expects to see
    Stream* expecting(u32 unit);             // or null
    void begin(u32 unit, bool zeros);        // the one that was used longest ago ends
    Ahead advance(Stream& stream, const Units& units, u32 unit, bool missed);  // what it expected came

private:
    Stream streams_[8];
    u64 clock_ = 0;
};

}  // namespace osf::engine
