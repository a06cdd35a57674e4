// What a processor does with rows: pools them, copies them, checks ids, applies gradients. There are three sets of functions: a plain
// one, which is the oracle of the tests, one for AVX2 and one for AVX-512. All three give the same bits.
//
// The sets are compiled with flags of their processors. So this header and those that they include use no other header of the core: an
// inline function of another header, compiled with such flags, could be the one that the linker takes for everybody.
#pragma once

#include <cstdint>

namespace osf::simd {

// Rows of integers end with their scale and bias. int8: dim bytes, then two float32, as torch's embedding_bag_byte_prepack lays them out.
// int4: two elements a byte, the first in the low half, then two float16, as embedding_bag_4bit_prepack does.
enum class RowType : std::uint32_t { float32, float16, bfloat16, int8, int4 };
constexpr std::uint32_t ROW_TYPES = 5;

enum class Pooling : std::uint32_t { sum, mean, max };

enum class Optimizer : std::uint32_t { sgd, adagrad, rowwise_adagrad, adam };
constexpr std::uint32_t OPTIMIZERS = 4;

constexpr std::uint64_t row_bytes(RowType type, std::uint64_t dim) {
    switch (type) {
        case RowType::float32: return 4 * dim;
        case RowType::float16:
        case RowType::bfloat16: return 2 * dim;
        case RowType::int8: return dim + 8;
        case RowType::int4: return dim / 2 + 4;
    }
    return 0;
}

constexpr std::uint64_t state_bytes(Optimizer optimizer, std::uint64_t dim) {
    switch (optimizer) {
        case Optimizer::sgd: return 0;
        case Optimizer::adagrad: return 4 * dim;
        case Optimizer::rowwise_adagrad: return 4;
        case Optimizer::adam: return 8 * dim;  // the mean of gradients, then that of their squares
    }
    return 0;
}

struct RowShape {
    std::uint64_t dim, bytes;
    std::uint32_t ahead;                         // rows between the one that is read and the one that is asked for
};

struct Bags {
    const char* const* rows;                     // addresses; `ahead` more than the last bag's end may be read
    const std::uint32_t* ends;                   // of each bag, in `rows`; the next one begins there
    std::uint64_t count;
    const float* weights;                        // of each row; null: all 1; of sums only
    char* out;
    std::uint64_t out_stride;                    // bytes from one bag's result to the next one's
};

struct Settings {                                // of an optimizer, at one step
    float lr, eps, beta1, beta2;
    float correction1, correction2;              // of Adam: 1 - beta^step
};

constexpr std::uint32_t INFINITE = 0x7f800000;

// Dynamic ids: buckets of KEYS_A_BUCKET keys (tables/keys.hpp). A key is in one of two buckets, or has no row.
constexpr std::uint64_t KEYS_A_BUCKET = 8, KEY_BUCKET_BYTES = 64;
constexpr std::uint64_t KEYS_AHEAD = 128;        // keys between the one that is looked for and the one whose bucket is asked for

struct KeyIndex {
    const char* buckets;                         // each a line
    std::uint64_t count;                         // of buckets, below 2^32
    std::int64_t none;                           // the row of keys without one

    static constexpr std::uint64_t hash(std::int64_t key) {
        std::uint64_t word = std::uint64_t(key) * 0x9e3779b97f4a7c15ull;
        word ^= word >> 32;
        word *= 0xd6e8feb86659fd93ull;
        return word ^ word >> 32;
    }
    constexpr std::uint64_t first(std::uint64_t hash) const { return (hash >> 32) * count >> 32; }
    constexpr std::uint64_t second(std::uint64_t hash) const { return (hash & 0xffffffffull) * count >> 32; }
};

using BagKernel = void (*)(const RowShape& shape, const Bags& bags, Pooling pooling);

struct Kernels {
    const char* name;
    std::uint64_t (*largest32)(const std::int32_t* ids, std::uint64_t count);  // as unsigned numbers: a negative one is huge
    std::uint64_t (*largest64)(const std::int64_t* ids, std::uint64_t count);
    bool (*has)(const std::int64_t* keys, std::uint64_t count, std::int64_t key);  // whether it is one of them
    std::uint32_t (*size)(const float* values, std::uint64_t count);  // the bits of the largest without its sign; from INFINITE on, not all are finite
    // How many have no row. After the keys come `further` ones, whose buckets are asked for, too.
    std::uint64_t (*find_keys)(const KeyIndex& index, const std::int64_t* keys, std::uint64_t count, std::uint64_t further, std::int64_t* rows);
    BagKernel bags[ROW_TYPES];                   // out = the rows of each bag pooled; an empty one gives zeros
    void (*narrow[ROW_TYPES])(const float* from, char* row, std::uint64_t dim);  // a row of these numbers, rounded to nearest
    void (*step[OPTIMIZERS])(float* row, float* state, const float* gradient, std::uint64_t dim, const Settings& settings);
};

extern const Kernels plain_kernels;
extern const Kernels* const avx2_kernels;        // null: not for this kind of processor
extern const Kernels* const avx512_kernels;

}  // namespace osf::simd
