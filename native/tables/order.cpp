#include "tables/order.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace osf::tables {

// By digits of 11 bits, the lowest first: as many passes as the largest id has digits. Few ids are sorted by comparing.
std::vector<Ordered> in_order(const Ids& ids) {
    std::vector<Ordered> order(ids.count), other;
    for (u64 at = 0; at < ids.count; at++) order[at] = {ids[at], u32(at), 0};
    if (ids.count < 512) {
        std::sort(order.begin(), order.end(), [](const Ordered& a, const Ordered& b) { return a.row != b.row ? a.row < b.row : a.position < b.position; });
        return order;
    }
    constexpr u32 BITS = 11;
    const u32 width = u32(std::bit_width(ids.largest()));
    other.resize(ids.count);
    for (u32 shift = 0; shift < width; shift += BITS) {
        u64 starts[1 << BITS] = {};
        auto digit = [&](const Ordered& one) { return one.row >> shift & ((1 << BITS) - 1); };
        for (const Ordered& one : order) starts[digit(one)]++;
        u64 sum = 0;
        for (u64& start : starts) sum += std::exchange(start, sum);
        for (const Ordered& one : order) other[starts[digit(one)]++] = one;
        order.swap(other);
    }
    return order;
}

}  // namespace osf::tables
