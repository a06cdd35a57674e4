// memcpy for many pieces of some KiB, with two things that memcpy cannot know or does not do.
//
// Past the caches: one memcpy of everything would write around the caches, which saves reading every line that is about to be overwritten;
// one of a piece does not know of the others. And plain loads and stores: for such sizes glibc may use `rep movsb`, which on some
// processors (AMD Zen 3) is five times as slow where the target lies a few bytes ahead of the source modulo 4 KiB. That is no rare
// case: blocks are page-aligned, and numpy's large arrays begin 16 bytes into a page.
#include "kv/hit.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace osf::kv {

#if defined(__x86_64__)

constexpr u64 STEP = 256, AHEAD = 8192;

template <bool past>
__attribute__((target("avx"), always_inline)) static inline void step_copy(char* to, const char* from) {
    __m256i part[STEP / 32];
    for (u64 at = 0; at < STEP / 32; at++) part[at] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + at);
    for (u64 at = 0; at < STEP / 32; at++) {
        if constexpr (past) _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + at, part[at]);
        else _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + at, part[at]);
    }
}

template <bool past>
__attribute__((target("avx"))) static void copy(char* to, const char* from, u64 bytes) {
    if (u64 head = -u64(to) % 32) {
        std::memcpy(to, from, head);
        to += head;
        from += head;
        bytes -= head;
    }
    const u64 steps = bytes / STEP;
    std::memcpy(to + steps * STEP, from + steps * STEP, bytes - steps * STEP);
    for (u64 at = 0; at < steps * STEP; at += STEP) {
        for (u64 line = 0; line < STEP; line += 64) _mm_prefetch(from + at + line + AHEAD, _MM_HINT_T0);
        step_copy<past>(to + at, from + at);
    }
}

void kv_copy(char* to, const char* from, u64 bytes, bool past_caches) {
    static const bool avx = __builtin_cpu_supports("avx");
    if (!avx || bytes < 2 * STEP) std::memcpy(to, from, bytes);
    else if (past_caches) copy<true>(to, from, bytes);
    else copy<false>(to, from, bytes);
}

void kv_copied() { _mm_sfence(); }

#else

void kv_copy(char* to, const char* from, u64 bytes, bool) { std::memcpy(to, from, bytes); }
void kv_copied() {}

#endif

}  // namespace osf::kv
