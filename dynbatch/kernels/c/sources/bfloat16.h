// Numbers rounded to bfloat16, which is the upper half of a float.
#include "common.h"

typedef uint32_t bit_vector __attribute__((vector_size(VECTOR_BYTES)));
#define INFINITE 0x7f800000u
#define SIGN 0x80000000u

// The nearest bfloat16 of each number, of two the even one, in the upper halves. Infinity stays, and
// what is too large becomes it; NaN stays one, quiet, with as much of its payload as there is room for.
INLINE bit_vector nearest_bfloat16(bit_vector bits) {
#if defined(__AVX512BF16__) && defined(REAL_IS_FLOAT)
    // By instruction, in half the time, but for subnormal numbers, which it takes as 0.
    __mmask16 small = _mm512_testn_epi32_mask((__m512i)bits, _mm512_set1_epi32(INFINITE));
    if (__builtin_expect(!_mm512_mask_test_epi32_mask(small, (__m512i)bits, (__m512i)bits), 1)) {
        __m256i halves = (__m256i)_mm512_cvtneps_pbh((__m512)bits);
        return (bit_vector)_mm512_cvtepu16_epi32(halves) << 16;
    }
#endif
    bit_vector is_nan = (bit_vector)((bits & ~SIGN) > INFINITE);
    bit_vector rounded = bits + 0x7fff + (bits >> 16 & 1);
    return ((is_nan & (bits | 0x400000)) | (~is_nan & rounded)) >> 16 << 16;
}

// Numbers that are kept as upper halves:
//
// put_halves: keeps those of n numbers that are rounded.
// put_short: rounds n numbers and keeps them.
// get_halves: the first n of them in the lower halves of lanes, zeros in the other lanes.
// get_short: the numbers that these are of.
// get_pairs: the first n in pairs, the first of a pair in the lower half of a lane.
// first_of_pairs, second_of_pairs: parts them.
#ifdef REAL_IS_FLOAT
typedef uint16_t half_vector __attribute__((vector_size(VECTOR_BYTES / 2)));

INLINE bit_vector get_halves(const void* p, ptrdiff_t n) {
    half_vector halves = {0};
    if (n == LANES) memcpy(&halves, p, sizeof halves);
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    else halves = (half_vector)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
#else
    else memcpy(&halves, p, (size_t)n * 2);
#endif
#if defined(__AVX512F__)  // GCC 12 takes two steps for a vector of 512 bits
    return (bit_vector)_mm512_cvtepu16_epi32((__m256i)halves);
#else
    return __builtin_convertvector(halves, bit_vector);
#endif
}
INLINE vector get_short(const void* p, ptrdiff_t n) { return (vector)(get_halves(p, n) << 16); }
INLINE void put_halves(uint16_t* p, bit_vector bits, ptrdiff_t n) {
#if defined(__AVX512F__)
    half_vector halves = (half_vector)_mm512_cvtepi32_epi16((__m512i)(bits >> 16));
#else
    half_vector halves = __builtin_convertvector(bits >> 16, half_vector);
#endif
    if (n == LANES) memcpy(p, &halves, sizeof halves);
    else memcpy(p, &halves, (size_t)n * 2);
}
INLINE void put_short(uint16_t* p, vector x, ptrdiff_t n) {
    put_halves(p, nearest_bfloat16((bit_vector)x), n);
}
INLINE vector get_pairs(const void* p, ptrdiff_t n) {
    vector x = {0};
    if (n == 2 * LANES) memcpy(&x, p, sizeof x);
#if defined(__AVX512BW__)
    else x = (vector)_mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p);
#else
    else memcpy(&x, p, (size_t)n * 2);
#endif
    return x;
}
INLINE vector first_of_pairs(vector x) { return (vector)((bit_vector)x << 16); }
INLINE vector second_of_pairs(vector x) { return (vector)((bit_vector)x >> 16 << 16); }
#else  // nothing of float64 is kept so
INLINE vector get_short(const void* p, ptrdiff_t n) { return (vector){0}; }
INLINE void put_short(uint16_t* p, vector x, ptrdiff_t n) {}
INLINE vector get_pairs(const void* p, ptrdiff_t n) { return (vector){0}; }
INLINE vector first_of_pairs(vector x) { return x; }
INLINE vector second_of_pairs(vector x) { return x; }
#endif
