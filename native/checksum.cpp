#include "checksum.hpp"

#include <algorithm>

namespace osf {

// As hash_bytes, each step a bijection, so that a change of one word always shows; eight chains, because one core has to keep up
// with a disk while it does other things.
template <bool copies>
static u64 check_words(const char* bytes, u64 size, char* to, u64 seed) {
    constexpr u64 FACTOR = 0x9fb21c651e98df25ull;
    u64 chains[8];
    for (u64 at = 0; at < 8; at++) chains[at] = seed ^ at;
    for (u64 at = 0; at < size; at += 64) {
        u64 words[8];
        std::memcpy(words, bytes + at, sizeof words);
        if constexpr (copies) std::memcpy(to + at, words, sizeof words);
        for (int lane = 0; lane < 8; lane++) {
            chains[lane] = (chains[lane] ^ words[lane]) * FACTOR;
            chains[lane] ^= chains[lane] >> 32;
        }
    }
    return hash_bytes(chains, sizeof chains, seed);
}

u64 check_bytes(const char* bytes, u64 size, u64 seed, char* to) {
    return to ? check_words<true>(bytes, size, to, seed) : check_words<false>(bytes, size, nullptr, seed);
}

u64 check_pieces(const char* bytes, u64 size, u64 first) {
    u64 sum = 0;
    for (u64 at = 0; at < size; at += PIECE) sum += check_bytes(bytes + at, std::min(PIECE, size - at), first + at / PIECE);
    return sum;
}

}  // namespace osf
