#include "tables/initial.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "simd/choose.hpp"
#include "tables/workers.hpp"

namespace osf::tables {

// splitmix64's last steps: every bit of the number changes every bit of the result.
static u64 mixed(u64 word) {
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebull;
    return word ^ (word >> 31);
}

static float draw(const TableInit& init, u64 word) {
    const double a = double(word >> 40) * 0x1p-24, b = double(word & 0xffffff) * 0x1p-24;
    if (init.kind == Initial::uniform) return float(init.first + (init.second - init.first) * a);
    const double radius = std::sqrt(-2 * std::log(1 - a));  // Box and Muller
    return float(init.first + init.second * radius * std::cos(2 * std::numbers::pi * b));
}

void fill_rows(const TableInit& init, RowType type, u64 dim, char* rows, u64 first, u64 count) {
    const u64 bytes = row_bytes(type, dim);
    if (init.kind == Initial::zeros) return;     // so they are
    constexpr u64 PIECE = 4096;
    run_pieces(div_up(count, PIECE), 0, [&](u64 piece) {
        std::vector<float> row(dim);
        for (u64 at = piece * PIECE; at < std::min(count, (piece + 1) * PIECE); at++) {
            const u64 key = mixed(init.seed + 0x9e3779b97f4a7c15ull * (first + at + 1));
            for (u64 column = 0; column < dim; column++) row[column] = draw(init, mixed(key + 0x9e3779b97f4a7c15ull * (column + 1)));
            kernels().narrow[u32(type)](row.data(), rows + at * bytes, dim);
        }
    });
}

}  // namespace osf::tables
