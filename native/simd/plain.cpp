// One number at a time, on any processor.
#include <type_traits>

#include "simd/bags.hpp"

namespace osf::simd {

struct Plain {
    using V = float;
    static constexpr std::uint64_t N = 1, REGISTERS = 8;

    static unsigned same(const char* bucket, std::int64_t key) {
        unsigned found = 0;
        for (unsigned at = 0; at < KEYS_A_BUCKET; at++) found |= unsigned(__atomic_load_n(reinterpret_cast<const std::int64_t*>(bucket) + at, __ATOMIC_RELAXED) == key) << at;
        return found;
    }

    static float half(std::uint16_t bits) {
        const std::uint32_t sign = std::uint32_t(bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
        std::uint32_t word;
        if (exponent == 31) {
            word = sign | 0x7f800000u | mantissa << 13 | (mantissa ? 1u << 22 : 0);
        } else if (exponent) {
            word = sign | (exponent + 112) << 23 | mantissa << 13;
        } else {
            const float tiny = float(mantissa) * 5.9604644775390625e-08f;  // 2^-24
            std::memcpy(&word, &tiny, 4);
            word |= sign;
        }
        float value;
        std::memcpy(&value, &word, 4);
        return value;
    }
    static std::uint16_t to_half(float value) {
        std::uint32_t word;
        std::memcpy(&word, &value, 4);
        const std::uint32_t sign = word >> 16 & 0x8000, size = word & 0x7fffffffu;
        if (size > 0x7f800000u) return std::uint16_t(sign | 0x7e00 | (size >> 13 & 0x3ff));
        if (size >= 0x47800000u) return std::uint16_t(sign | 0x7c00);  // from 65,536 on; what is rounded up to it comes below
        if (size < 0x38800000u) {                                      // a subnormal: the sum's last bits are its mantissa
            float sum, small;
            std::memcpy(&small, &size, 4);
            sum = small + 0.5f;
            std::memcpy(&word, &sum, 4);
            return std::uint16_t(sign | (word - 0x3f000000u));
        }
        return std::uint16_t(sign | ((size - 0x38000000u + 0xfff + (size >> 13 & 1)) >> 13));
    }

    static V zero() { return 0; }
    static V all(float value) { return value; }
    static V add(V a, V b) { return a + b; }
    static V fma(V a, V b, V c) { return __builtin_fmaf(a, b, c); }
    static V max(V a, V b) { return a > b ? a : b; }
    static V over(V a, V b) { return a / b; }
    static void write(float* to, V value) { *to = value; }
    template <RowType T>
    static V read(const char* row, std::uint64_t column) {
        if constexpr (T == RowType::float32) {
            float value;
            std::memcpy(&value, row + 4 * column, 4);
            return value;
        } else if constexpr (T == RowType::int8) {
            return float(std::uint8_t(row[column]));
        } else if constexpr (T == RowType::int4) {
            return float(std::uint8_t(row[column / 2]) >> (column % 2 ? 4 : 0) & 15);
        } else {
            std::uint16_t bits;
            std::memcpy(&bits, row + 2 * column, 2);
            if constexpr (T == RowType::float16) return half(bits);
            const std::uint32_t word = std::uint32_t(bits) << 16;
            float value;
            std::memcpy(&value, &word, 4);
            return value;
        }
    }
};

const Kernels plain_kernels = Body<Plain>::kernels("plain");

}  // namespace osf::simd
