#include "engine/streams.hpp"

#include <algorithm>

#include "faults/faults.hpp"

namespace osf::engine {

constexpr u32 AHEAD_LEAST = 8, AHEAD_MOST = 1024, AHEAD_OLD = 64;         // units

Streams::Stream* Streams::expecting(u32 unit) {
    auto found = std::find_if(std::begin(streams_), std::end(streams_), [&](const Stream& one) { return one.next == unit; });
    return found == std::end(streams_) ? nullptr : found;
}

void Streams::begin(u32 unit, bool zeros) {
    auto oldest = std::min_element(std::begin(streams_), std::end(streams_), [](const Stream& a, const Stream& b) { return a.used < b.used; });
    *oldest = {unit + 1, unit + 1, unit, ++clock_, zeros};
}

Ahead Streams::advance(Stream& stream, const Units& units, u32 unit, bool missed) {
    stream.used = ++clock_;
    stream.next = unit + 1;
    if (missed) stream.zeros = units.tier(unit) == Tier::empty;
    stream.end = std::max(stream.end, unit + 1);
    const u32 seen = unit + 1 - stream.first;
    const u32 most = std::clamp<u32>(u32(units.capacity / (units.capacity < 8192 ? 64 : 16)), AHEAD_LEAST, AHEAD_MOST);
    if (seen < 3) return {};
    const bool sees = abilities().minor, young = sees && seen < AHEAD_OLD;
    const u32 window = std::clamp(seen, AHEAD_LEAST, most);
    if (young && stream.end - unit > window / 2) return {};  // enough is there
    Ahead ahead{stream.end, stream.end, NO_UNIT, stream.zeros, young};
    while (ahead.last < units.count && ahead.last < unit + 1 + window && !units.unused(ahead.last)) ahead.last++;
    if (ahead.first == ahead.last) return {};
    stream.end = ahead.last;
    if (!sees) stream.next = ahead.last;  // the next touch that is seen is the one that misses
    else if (!young) ahead.skip = stream.next = ahead.first + (ahead.last - ahead.first) / 2;
    return ahead;
}

}  // namespace osf::engine
