// Eight numbers at a time. Compiled with -mavx2 -mfma -mf16c where there are such processors.
#include <type_traits>

#include "simd/bags.hpp"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

namespace osf::simd {

struct Avx2 {
    using V = __m256;
    static constexpr std::uint64_t N = 8, REGISTERS = 8;

    static unsigned same(const char* bucket, std::int64_t key) {
        const __m256i wanted = _mm256_set1_epi64x(key);
        const auto* keys = reinterpret_cast<const __m256i*>(bucket);
        const auto four = [&](const __m256i* at) { return unsigned(_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_load_si256(at), wanted)))); };
        return four(keys) | four(keys + 1) << 4;
    }

    static float half(std::uint16_t bits) { return _cvtsh_ss(bits); }
    static std::uint16_t to_half(float value) { return std::uint16_t(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)); }
    static V zero() { return _mm256_setzero_ps(); }
    static V all(float value) { return _mm256_set1_ps(value); }
    static V add(V a, V b) { return _mm256_add_ps(a, b); }
    static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
    static V max(V a, V b) { return _mm256_max_ps(a, b); }   // b where either is no number
    static V over(V a, V b) { return _mm256_div_ps(a, b); }
    static void write(float* to, V value) { _mm256_storeu_ps(to, value); }
    template <RowType T>
    static V read(const char* row, std::uint64_t column) {
        if constexpr (T == RowType::float32) {
            return _mm256_loadu_ps(reinterpret_cast<const float*>(row) + column);
        } else if constexpr (T == RowType::int8) {
            return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadu_si64(row + column)));
        } else if constexpr (T == RowType::int4) {
            const __m128i bytes = _mm_loadu_si32(row + column / 2), low = _mm_set1_epi8(15);
            const __m128i both = _mm_unpacklo_epi8(_mm_and_si128(bytes, low), _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
            return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(both));
        } else {
            const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * column));
            if constexpr (T == RowType::float16) return _mm256_cvtph_ps(halves);
            return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
        }
    }
};

static constexpr Kernels set = Body<Avx2>::kernels("avx2");
const Kernels* const avx2_kernels = &set;

}  // namespace osf::simd
#else
namespace osf::simd {
const Kernels* const avx2_kernels = nullptr;
}
#endif
