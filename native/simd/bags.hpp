// The bodies of all kernels, for lanes L of one kind of processor: L::N numbers at once. See simd/kernels.hpp.
#pragma once

#include <cmath>
#include <cstring>

#include "simd/kernels.hpp"

namespace osf::simd {

constexpr bool quantised(RowType type) { return type == RowType::int8 || type == RowType::int4; }

// Bytes of `count` elements; of int4, an even number of them.
constexpr std::uint64_t elements_bytes(RowType type, std::uint64_t count) {
    return type == RowType::float32 ? 4 * count : type == RowType::int8 ? count : type == RowType::int4 ? (count + 1) / 2 : 2 * count;
}

template <class L>
struct Body {
    using V = typename L::V;
    using u64 = std::uint64_t;

    struct Bag {
        const char* const* rows;
        u64 count;
        const float* weights;
        float* out;
    };

    template <RowType T>
    static void scale_of(const char* row, u64 dim, float& scale, float& bias) {
        if constexpr (T == RowType::int8) {
            std::memcpy(&scale, row + dim, 4);
            std::memcpy(&bias, row + dim + 4, 4);
        } else if constexpr (T == RowType::int4) {
            std::uint16_t halves[2];
            std::memcpy(halves, row + dim / 2, 4);
            scale = L::half(halves[0]);
            bias = L::half(halves[1]);
        }
    }

    // Into the second-level cache: a processor has more such requests on their way than ones for the first level.
    static void ask_for(const char* line) { __builtin_prefetch(line, 0, 2); }

    // Columns [column, column + B * N) of a bag; with TAIL, B is 1 and only `tail` of them are there. Between two vectors it asks for the
    // same columns of a row further on: evenly spread, requests do not wait for each other.
    template <RowType T, Pooling P, bool WEIGHTED, u64 B, bool TAIL = false>
    static void block(const RowShape& shape, const Bag& bag, u64 column, u64 tail = 0) {
        constexpr u64 LINE = elements_bytes(T, L::N) >= 64 ? 1 : 64 / elements_bytes(T, L::N);  // vectors in a line
        const bool last = column == 0 && shape.bytes % 64;  // rows that are no whole lines reach into one more
        V sum[B];
        for (u64 at = 0; at < B; at++) sum[at] = L::zero();
        for (u64 i = 0; i < bag.count; i++) {
            const char* row = bag.rows[i];
            const char* later = bag.rows[i + shape.ahead];
            if (last) ask_for(later + shape.bytes - 1);
            float scale = 1, bias = 0;
            scale_of<T>(row, shape.dim, scale, bias);
            V factor = L::zero(), shift = L::zero();
            if constexpr (quantised(T)) {
                factor = L::all(WEIGHTED ? scale * bag.weights[i] : scale);
                shift = L::all(WEIGHTED ? bias * bag.weights[i] : bias);
            } else if constexpr (WEIGHTED) {
                factor = L::all(bag.weights[i]);
            }
            alignas(64) char part[64];
            if constexpr (TAIL) std::memcpy(part, row + elements_bytes(T, column), elements_bytes(T, tail));
            for (u64 at = 0; at < B; at++) {
                if (at % LINE == 0) ask_for(later + elements_bytes(T, column + at * L::N));
                const V x = TAIL ? L::template read<T>(part, 0) : L::template read<T>(row, column + at * L::N);
                if constexpr (P == Pooling::max) {
                    V value = x;
                    if constexpr (quantised(T)) value = L::fma(factor, x, shift);
                    sum[at] = i ? L::max(value, sum[at]) : value;
                } else if constexpr (quantised(T)) {
                    sum[at] = L::fma(factor, x, L::add(sum[at], shift));
                } else if constexpr (WEIGHTED) {
                    sum[at] = L::fma(factor, x, sum[at]);
                } else {
                    sum[at] = L::add(sum[at], x);
                }
            }
        }
        if constexpr (P == Pooling::mean)
            for (u64 at = 0; at < B; at++) sum[at] = L::over(sum[at], L::all(float(bag.count ? bag.count : 1)));
        if constexpr (TAIL) {
            alignas(64) float whole[L::N];
            L::write(whole, sum[0]);
            std::memcpy(bag.out + column, whole, 4 * tail);
        } else {
            for (u64 at = 0; at < B; at++) L::write(bag.out + column + at * L::N, sum[at]);
        }
    }

    template <RowType T, Pooling P, bool WEIGHTED>
    static void all_columns(const RowShape& shape, const Bag& bag) {
        u64 column = 0;
        auto blocks = [&]<u64 B>() {
            for (; column + B * L::N <= shape.dim; column += B * L::N) block<T, P, WEIGHTED, B>(shape, bag, column);
        };
        if constexpr (L::REGISTERS > 8) blocks.template operator()<16>();
        blocks.template operator()<8>();
        blocks.template operator()<4>();
        blocks.template operator()<2>();
        blocks.template operator()<1>();
        if (column < shape.dim) block<T, P, WEIGHTED, 1, true>(shape, bag, column, shape.dim - column);
    }

    template <RowType T, Pooling P, bool WEIGHTED>
    static void each(const RowShape& shape, const Bags& bags) {
        auto with = [&](const auto& pool) {
            u64 begin = 0;
            for (u64 at = 0; at < bags.count; at++) {
                const u64 end = bags.ends[at];
                pool(Bag{bags.rows + begin, end - begin, WEIGHTED ? bags.weights + begin : nullptr, reinterpret_cast<float*>(bags.out + at * bags.out_stride)});
                begin = end;
            }
        };
        // The two common sizes, 64 and 128, without asking for every bag what its columns are.
        if (shape.dim == 4 * L::N && L::REGISTERS > 8) {
            with([&](const Bag& bag) { block<T, P, WEIGHTED, 4>(shape, bag, 0); });
        } else if (shape.dim == 8 * L::N) {
            with([&](const Bag& bag) { block<T, P, WEIGHTED, 8>(shape, bag, 0); });
        } else if (shape.dim == 16 * L::N && L::REGISTERS == 8) {
            with([&](const Bag& bag) {
                block<T, P, WEIGHTED, 8>(shape, bag, 0);
                block<T, P, WEIGHTED, 8>(shape, bag, 8 * L::N);
            });
        } else {
            with([&](const Bag& bag) { all_columns<T, P, WEIGHTED>(shape, bag); });
        }
    }

    template <RowType T>
    static void bags(const RowShape& shape, const Bags& some, Pooling pooling) {
        if (pooling == Pooling::max) each<T, Pooling::max, false>(shape, some);
        else if (pooling == Pooling::mean) each<T, Pooling::mean, false>(shape, some);
        else if (some.weights) each<T, Pooling::sum, true>(shape, some);
        else each<T, Pooling::sum, false>(shape, some);
    }

    template <class I>
    static u64 largest(const I* ids, u64 count) {
        using U = std::make_unsigned_t<I>;
        U most[8] = {};
        u64 at = 0;
        for (; at + 8 <= count; at += 8)
            for (int lane = 0; lane < 8; lane++) most[lane] = U(ids[at + u64(lane)]) > most[lane] ? U(ids[at + u64(lane)]) : most[lane];
        for (; at < count; at++) most[0] = U(ids[at]) > most[0] ? U(ids[at]) : most[0];
        for (int lane = 1; lane < 8; lane++) most[0] = most[lane] > most[0] ? most[lane] : most[0];
        return most[0];
    }

    static bool has(const std::int64_t* keys, u64 count, std::int64_t key) {
        u64 same = 0;
        for (u64 at = 0; at < count; at++) same |= u64(keys[at] == key);
        return same != 0;
    }

    // A bucket is asked for some keys before it is looked at, by an even stream of requests. Keys that are not in their first bucket wait
    // until all others are done: their second buckets come meanwhile. The bits of L::same say, without a branch, which of a bucket's keys
    // is this one.
    static u64 find_keys(const KeyIndex& index, const std::int64_t* keys, u64 count, u64 further, std::int64_t* rows) {
        constexpr u64 SOME = 256;
        u64 none = 0;
        std::uint32_t numbers[SOME + KEYS_AHEAD], rest[SOME];
        auto bucket = [&](u64 number) { return index.buckets + number * KEY_BUCKET_BYTES; };
        auto row = [](u64 number, unsigned same) { return std::int64_t(number * KEYS_A_BUCKET) + __builtin_ctz(same); };
        for (u64 from = 0; from < count; from += SOME) {
            const u64 some = count - from < SOME ? count - from : SOME, known = count + further - from, hashed = known < SOME + KEYS_AHEAD ? known : SOME + KEYS_AHEAD;
            for (u64 at = 0; at < hashed; at++) numbers[at] = std::uint32_t(index.first(KeyIndex::hash(keys[from + at])));
            for (u64 at = hashed; at < some + KEYS_AHEAD; at++) numbers[at] = 0;  // where no more keys are, of any
            u64 left = 0;
            for (u64 at = 0; at < some; at++) {
                ask_for(bucket(numbers[at + KEYS_AHEAD]));
                const unsigned same = L::same(bucket(numbers[at]), keys[from + at]);
                rows[from + at] = row(numbers[at], same | 1u << KEYS_A_BUCKET);
                rest[left] = std::uint32_t(at);
                left += !same;
            }
            for (u64 one = 0; one < left; one++) {
                std::uint32_t& number = numbers[one];  // no longer that of a first bucket: one is at most rest[one]
                number = std::uint32_t(index.second(KeyIndex::hash(keys[from + rest[one]])));
                ask_for(bucket(number));
            }
            for (u64 one = 0; one < left; one++) {
                const u64 at = from + rest[one];
                const unsigned same = L::same(bucket(numbers[one]), keys[at]);
                const std::int64_t found = row(numbers[one], same | 1u << KEYS_A_BUCKET), missing = -std::int64_t(!same);
                rows[at] = found ^ ((found ^ index.none) & missing);
                none += u64(!same);
            }
        }
        return none;
    }

    // Without their signs, floats are in the order of their bits, and what is no number comes last.
    static std::uint32_t size(const float* values, u64 count) {
        std::uint32_t most = 0;
        for (u64 at = 0; at < count; at++) {
            std::uint32_t bits;
            std::memcpy(&bits, values + at, 4);
            bits &= 0x7fffffffu;
            most = bits > most ? bits : most;
        }
        return most;
    }

    template <RowType T>
    static void narrow(const float* from, char* row, u64 dim) {
        if constexpr (T == RowType::float32) std::memcpy(row, from, 4 * dim);
        else if constexpr (T == RowType::int8) narrow_int8(from, row, dim);
        else if constexpr (T == RowType::int4) narrow_int4(from, row, dim);
        else
            for (u64 at = 0; at < dim; at++) {
                const std::uint16_t bits = T == RowType::float16 ? L::to_half(from[at]) : to_bfloat(from[at]);
                std::memcpy(row + 2 * at, &bits, 2);
            }
    }

    static std::uint16_t to_bfloat(float value) {
        std::uint32_t bits;
        std::memcpy(&bits, &value, 4);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return std::uint16_t(bits >> 16 | 0x40);  // no number stays none
        return std::uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }

    static void bounds(const float* from, u64 dim, float& low, float& high) {
        low = high = from[0];
        for (u64 at = 1; at < dim; at++) {
            low = from[at] < low ? from[at] : low;
            high = from[at] > high ? from[at] : high;
        }
    }

    // As FBGEMM's FloatToFused8BitRowwiseQuantizedSBFloat, bit for bit.
    static void narrow_int8(const float* from, char* row, u64 dim) {
        float low, high;
        bounds(from, dim, low, high);
        const float range = high - low, scale = range / 255.0f, inverse = 255.0f / (range + 1e-8f);
        for (u64 at = 0; at < dim; at++) row[at] = char(std::uint8_t(std::lrintf((from[at] - low) * inverse)));
        std::memcpy(row + dim, &scale, 4);
        std::memcpy(row + dim + 4, &low, 4);
    }

    // As FBGEMM's FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf of 4 bits.
    static void narrow_int4(const float* from, char* row, u64 dim) {
        float low, high;
        bounds(from, dim, low, high);
        std::uint16_t halves[2] = {0, L::to_half(low)};
        low = L::half(halves[1]);
        const float range = high - low;
        float scale = range == 0 ? 1.0f : range / 15.0f;
        halves[0] = L::to_half(scale);
        scale = L::half(halves[0]);
        if (scale == 0) scale = 1.0f;
        float inverse = 1.0f / scale;
        if (std::isinf(inverse)) scale = inverse = 1.0f;
        halves[0] = L::to_half(scale);
        for (u64 at = 0; at < dim; at += 2) {
            auto nibble = [&](float value) {
                const long number = std::lrintf((value - low) * inverse);
                return std::uint8_t(number < 0 ? 0 : number > 15 ? 15 : number);
            };
            row[at / 2] = char(nibble(from[at]) | nibble(from[at + 1]) << 4);
        }
        std::memcpy(row + dim / 2, halves, 4);
    }

    // Multiplications and additions round each by itself (the files are compiled without contraction), but where fma is written. All but
    // Adam, which FBGEMM does not have for CPUs, give the bits of its table-batched embeddings.
    static void sgd(float* row, float*, const float* g, u64 dim, const Settings& s) {
        for (u64 at = 0; at < dim; at++) row[at] = __builtin_fmaf(-s.lr, g[at], row[at]);
    }

    static void adagrad(float* row, float* sum, const float* g, u64 dim, const Settings& s) {
        for (u64 at = 0; at < dim; at++) {
            sum[at] = __builtin_fmaf(g[at], g[at], sum[at]);
            row[at] = float(double(row[at]) - double(s.lr * g[at]) / (std::sqrt(double(sum[at])) + double(s.eps)));
        }
    }

    static void rowwise_adagrad(float* row, float* sum, const float* g, u64 dim, const Settings& s) {
        float squares[8] = {};
        u64 at = 0;
        for (; at + 8 <= dim; at += 8)
            for (int lane = 0; lane < 8; lane++) squares[lane] += g[at + u64(lane)] * g[at + u64(lane)];
        for (int lane = 0; at < dim; at++, lane++) squares[lane] += g[at] * g[at];
        for (int step = 1; step < 8; step *= 2)  // neighbours first
            for (int lane = 0; lane < 8; lane += 2 * step) squares[lane] += squares[lane + step];
        *sum = *sum + squares[0] / float(dim);
        const float factor = s.lr / (std::sqrt(*sum) + s.eps);
        for (at = 0; at < dim; at++) row[at] = row[at] - factor * g[at];
    }

    static void adam(float* row, float* state, const float* g, u64 dim, const Settings& s) {
        float* mean = state;
        float* square = state + dim;
        for (u64 at = 0; at < dim; at++) {
            mean[at] = s.beta1 * mean[at] + (1 - s.beta1) * g[at];
            square[at] = s.beta2 * square[at] + (1 - s.beta2) * (g[at] * g[at]);
            const float m = mean[at] / s.correction1, v = square[at] / s.correction2;
            row[at] = row[at] - s.lr * (m / (std::sqrt(v) + s.eps));
        }
    }

    static constexpr Kernels kernels(const char* name) {
        return {name, largest<std::int32_t>, largest<std::int64_t>, has, size, find_keys,
                {bags<RowType::float32>, bags<RowType::float16>, bags<RowType::bfloat16>, bags<RowType::int8>, bags<RowType::int4>},
                {narrow<RowType::float32>, narrow<RowType::float16>, narrow<RowType::bfloat16>, narrow<RowType::int8>, narrow<RowType::int4>},
                {sgd, adagrad, rowwise_adagrad, adam}};
    }
};

}  // namespace osf::simd
