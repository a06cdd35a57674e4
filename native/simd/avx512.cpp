// Sixteen numbers at a time. Compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq where there are such processors.
#include <type_traits>

#include "simd/bags.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>

namespace osf::simd {

struct Avx512 {
    using V = __m512;
    static constexpr std::uint64_t N = 16, REGISTERS = 16;

    static unsigned same(const char* bucket, std::int64_t key) { return _mm512_cmpeq_epi64_mask(_mm512_load_si512(bucket), _mm512_set1_epi64(key)); }

    static float half(std::uint16_t bits) { return _cvtsh_ss(bits); }
    static std::uint16_t to_half(float value) { return std::uint16_t(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)); }
    static V zero() { return _mm512_setzero_ps(); }
    static V all(float value) { return _mm512_set1_ps(value); }
    static V add(V a, V b) { return _mm512_add_ps(a, b); }
    static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
    static V max(V a, V b) { return _mm512_max_ps(a, b); }   // b where either is no number
    static V over(V a, V b) { return _mm512_div_ps(a, b); }
    static void write(float* to, V value) { _mm512_storeu_ps(to, value); }
    template <RowType T>
    static V read(const char* row, std::uint64_t column) {
        if constexpr (T == RowType::float32) {
            return _mm512_loadu_ps(row + 4 * column);
        } else if constexpr (T == RowType::int8) {
            return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + column))));
        } else if constexpr (T == RowType::int4) {
            const __m128i bytes = _mm_loadu_si64(row + column / 2), low = _mm_set1_epi8(15);
            const __m128i both = _mm_unpacklo_epi8(_mm_and_si128(bytes, low), _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
            return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(both));
        } else {
            const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * column));
            if constexpr (T == RowType::float16) return _mm512_cvtph_ps(halves);
            return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
        }
    }
};

static constexpr Kernels set = Body<Avx512>::kernels("avx512");
const Kernels* const avx512_kernels = &set;

}  // namespace osf::simd
#else
namespace osf::simd {
const Kernels* const avx512_kernels = nullptr;
}
#endif
