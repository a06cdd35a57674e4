#include "base/checksum.hpp"

#include <algorithm>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace osf {

// Eight lanes. A lane adds its neighbour's words, so that a change of one word always shows, and the products of the halves of its
// own, xored with a key that is another one for each word: so places count. After each block every lane is mixed, which is a bijection.
constexpr u64 LANES = 8, STRIPE = LANES * 8, BLOCK = 16 * STRIPE;
constexpr u64 STEP = 0x9fb21c651e98df25ull, FACTOR = 0x9e3779b1;

struct Lanes { alignas(32) u64 sums[LANES], keys[LANES]; };

static Lanes begin_lanes(u64 seed) {
    Lanes lanes;
    for (u64 lane = 0; lane < LANES; lane++) {
        lanes.sums[lane] = seed;
        lanes.keys[lane] = (lane + 1) * 0xd6e8feb86659fd93ull;
    }
    return lanes;
}

u64 check_bytes_plain(const char* bytes, u64 size, u64 seed, char* to) {
    Lanes lanes = begin_lanes(seed);
    for (u64 block = 0; block < size; block += BLOCK) {
        for (u64 at = block; at < std::min(size, block + BLOCK); at += STRIPE) {
            u64 words[LANES];
            std::memcpy(words, bytes + at, sizeof words);
            if (to) std::memcpy(to + at, words, sizeof words);
            for (u64 lane = 0; lane < LANES; lane++) {
                const u64 mixed = words[lane] ^ lanes.keys[lane];
                lanes.sums[lane] += words[lane ^ 1] + (mixed & 0xffffffff) * (mixed >> 32);
                lanes.keys[lane] += STEP;
            }
        }
        for (u64 lane = 0; lane < LANES; lane++) {
            const u64 sum = lanes.sums[lane];
            lanes.sums[lane] = (sum ^ sum >> 47 ^ lanes.keys[lane]) * FACTOR;
        }
    }
    return hash_bytes(lanes.sums, sizeof lanes.sums, seed);
}

#if defined(__x86_64__)

// The same, four lanes at a time. What is copied does not go by way of the caches: it is more than they hold, and whoever wants it
// is on another core.
#define WIDE __attribute__((target("avx2"), always_inline)) inline

struct Half { __m256i sums, keys; };

WIDE static void add_words(Half& half, __m256i words) {
    const __m256i mixed = _mm256_xor_si256(words, half.keys);
    half.sums = _mm256_add_epi64(half.sums, _mm256_shuffle_epi32(words, 0x4e));
    half.sums = _mm256_add_epi64(half.sums, _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32)));
    half.keys = _mm256_add_epi64(half.keys, _mm256_set1_epi64x((long long)STEP));
}

WIDE static void end_block(Half& half) {
    const __m256i factor = _mm256_set1_epi64x((long long)FACTOR);
    const __m256i sum = _mm256_xor_si256(_mm256_xor_si256(half.sums, _mm256_srli_epi64(half.sums, 47)), half.keys);
    const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(sum, 32), factor);
    half.sums = _mm256_add_epi64(_mm256_mul_epu32(sum, factor), _mm256_slli_epi64(high, 32));
}

WIDE static __m256i take(const char* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

template <bool copies>
__attribute__((target("avx2"))) static u64 check_wide(const char* bytes, u64 size, u64 seed, char* to) {
    Lanes lanes = begin_lanes(seed);
    __m256i* sums = reinterpret_cast<__m256i*>(lanes.sums);
    const __m256i* keys = reinterpret_cast<const __m256i*>(lanes.keys);
    Half low{sums[0], keys[0]}, high{sums[1], keys[1]};
    for (u64 block = 0; block < size; block += BLOCK) {
        const u64 end = std::min(size, block + BLOCK);
        for (u64 at = block; at < end; at += STRIPE) {
            const __m256i first = take(bytes + at), second = take(bytes + at + 32);
            if constexpr (copies) {
                _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), first);
                _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + 32), second);
            }
            add_words(low, first);
            add_words(high, second);
        }
        end_block(low);
        end_block(high);
    }
    if constexpr (copies) _mm_sfence();  // before anybody is told that they are there
    sums[0] = low.sums;
    sums[1] = high.sums;
    return hash_bytes(lanes.sums, sizeof lanes.sums, seed);
}

u64 check_bytes(const char* bytes, u64 size, u64 seed, char* to) {
    static const bool wide = __builtin_cpu_supports("avx2");
    if (!wide) return check_bytes_plain(bytes, size, seed, to);
    return to ? check_wide<true>(bytes, size, seed, to) : check_wide<false>(bytes, size, seed, nullptr);
}

#else

u64 check_bytes(const char* bytes, u64 size, u64 seed, char* to) { return check_bytes_plain(bytes, size, seed, to); }

#endif

u64 check_pieces(const char* bytes, u64 size, u64 first) {
    u64 sum = 0;
    for (u64 at = 0; at < size; at += PIECE) sum += check_bytes(bytes + at, std::min(PIECE, size - at), first + at / PIECE);
    return sum;
}

}  // namespace osf
