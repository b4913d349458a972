// Vectors of the scalar type REAL, as wide as the processor's.
//
// An element's result must not depend on where it lies in an array: the last elements of a row are
// loaded into a whole vector with `load_part`, and go through the same arithmetic as all others.
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "system.h"

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define LANES ((ptrdiff_t)(VECTOR_BYTES / sizeof(REAL)))

#ifdef REAL_IS_FLOAT
#define REAL_BYTES 4
typedef int32_t whole;
#else
#define REAL_BYTES 8
typedef int64_t whole;
#endif

typedef REAL vector __attribute__((vector_size(VECTOR_BYTES)));
typedef whole mask __attribute__((vector_size(VECTOR_BYTES)));
typedef REAL loose __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

INLINE vector load(const REAL* p) { return *(const loose*)p; }
INLINE void store(REAL* p, vector x) { *(loose*)p = x; }
INLINE vector splat(REAL x) { return x - (vector){0}; }
// What a thread does while it looks for a change.
#ifdef __x86_64__
INLINE void relax(void) { _mm_pause(); }
#elif defined(__aarch64__)
INLINE void relax(void) { __asm__ volatile("yield"); }
#else
INLINE void relax(void) {}
#endif
INLINE ptrdiff_t least(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
INLINE ptrdiff_t most(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }

// True in the first n lanes.
INLINE mask first_lanes(ptrdiff_t n) {
    static const whole lane[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    mask lanes;
    memcpy(&lanes, lane, sizeof lanes);
    return lanes < (whole)n;
}

// The first n elements, 0 < n <= LANES; zeros in the other lanes.
#if defined(__AVX512F__) && defined(REAL_IS_FLOAT)
INLINE vector load_part(const REAL* p, ptrdiff_t n) {
    return (vector)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
INLINE void store_part(REAL* p, vector x, ptrdiff_t n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
}
#elif defined(__AVX512F__)
INLINE vector load_part(const REAL* p, ptrdiff_t n) {
    return (vector)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
}
INLINE void store_part(REAL* p, vector x, ptrdiff_t n) {
    _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), (__m512d)x);
}
#elif defined(__AVX2__) && defined(REAL_IS_FLOAT)
INLINE vector load_part(const REAL* p, ptrdiff_t n) {
    return (vector)_mm256_maskload_ps(p, (__m256i)first_lanes(n));
}
INLINE void store_part(REAL* p, vector x, ptrdiff_t n) {
    _mm256_maskstore_ps(p, (__m256i)first_lanes(n), (__m256)x);
}
#else
INLINE vector load_part(const REAL* p, ptrdiff_t n) {
    vector x = {0};
    memcpy(&x, p, (size_t)n * sizeof(REAL));
    return x;
}
INLINE void store_part(REAL* p, vector x, ptrdiff_t n) { memcpy(p, &x, (size_t)n * sizeof(REAL)); }
#endif

// where ? a : b, lane by lane; `where` is the result of a comparison.
INLINE vector choose(mask where, vector a, vector b) {
    return (vector)((where & (mask)a) | (~where & (mask)b));
}
// The first n lanes of x, and `other` in the rest.
INLINE vector fill(vector x, ptrdiff_t n, REAL other) {
    return n == LANES ? x : choose(first_lanes(n), x, splat(other));
}

// a b + c, in one rounding where the processor can. Of a plain sum in a loop GCC fuses some copies
// and not others (avoid-fma-max-bits, set for Zen and some more): where copies of a loop must give
// equal bits, sums are written with this. Clang fuses either product of a b + c d, as it pleases.
#if defined(__AVX512F__) && defined(REAL_IS_FLOAT)
#define FUSED(a, b, c) _mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c))
#elif defined(__AVX512F__)
#define FUSED(a, b, c) _mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c))
#elif defined(__FMA__) && defined(REAL_IS_FLOAT)
#define FUSED(a, b, c) _mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c))
#elif defined(__FMA__)
#define FUSED(a, b, c) _mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c))
#elif defined(__aarch64__) && defined(REAL_IS_FLOAT)
#define FUSED(a, b, c) vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b))
#elif defined(__aarch64__)
#define FUSED(a, b, c) vfmaq_f64((float64x2_t)(c), (float64x2_t)(a), (float64x2_t)(b))
#else
#define FUSED(a, b, c) ((a) * (b) + (c))
#endif
INLINE vector multiply_add(vector a, vector b, vector c) { return (vector)FUSED(a, b, c); }

// larger, smaller: NaN in either gives b: put what must not be lost there.
// times_power: x 2^k for whole numbers k, 0 or infinity beyond the range of floats.
// sum_lanes, largest_lane: over the lanes, in one order.
#if defined(__AVX512F__) && defined(REAL_IS_FLOAT)
INLINE vector larger(vector a, vector b) { return (vector)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vector smaller(vector a, vector b) { return (vector)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE vector times_power(vector x, vector k) {
    return (vector)_mm512_scalef_ps((__m512)x, (__m512)k);
}
INLINE vector sqrt_of(vector x) { return (vector)_mm512_sqrt_ps((__m512)x); }
INLINE REAL sum_lanes(vector x) { return _mm512_reduce_add_ps((__m512)x); }
INLINE REAL largest_lane(vector x) { return _mm512_reduce_max_ps((__m512)x); }
#else
#if defined(__AVX2__) && !defined(__AVX512F__) && defined(REAL_IS_FLOAT)
INLINE vector larger(vector a, vector b) { return (vector)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vector smaller(vector a, vector b) { return (vector)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE vector sqrt_of(vector x) { return (vector)_mm256_sqrt_ps((__m256)x); }
#else
INLINE vector larger(vector a, vector b) { return choose(a > b, a, b); }
INLINE vector smaller(vector a, vector b) { return choose(a < b, a, b); }
INLINE vector sqrt_of(vector x) {
    REAL parts[VECTOR_BYTES / sizeof(REAL)];
    store(parts, x);
    for (ptrdiff_t i = 0; i < LANES; i++) parts[i] = (REAL)sqrt(parts[i]);
    return load(parts);
}
#endif
INLINE REAL sum_lanes(vector x) {
    REAL parts[VECTOR_BYTES / sizeof(REAL)];
    store(parts, x);
    for (ptrdiff_t half = LANES / 2; half; half /= 2)
        for (ptrdiff_t i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}
INLINE REAL largest_lane(vector x) {
    REAL result = x[0];
    for (ptrdiff_t i = 1; i < LANES; i++) result = x[i] > result ? x[i] : result;
    return result;
}
#ifdef REAL_IS_FLOAT
// In two steps: 2^k alone may be below or above what a float holds.
INLINE vector times_power(vector x, vector k) {
    mask all = __builtin_convertvector(k, mask), half = all >> 1;
    mask other = all - half;
    return x * (vector)((half + 127) << 23) * (vector)((other + 127) << 23);
}
#endif
#endif

// Rows that are added up before their sum joins others.
#define TOGETHER 64
// Vectors of columns whose rows are added up side by side, so that a row is read in stretches that the
// processor fetches ahead.
#define BESIDE 8

// For each vector of n elements: `i`, and `part`, how many of its lanes are elements.
#define EACH_VECTOR(i, part, n) \
    for (ptrdiff_t i = 0, part = least(n, LANES); i < (n); i += LANES, part = least((n) - i, LANES))
INLINE vector get(const REAL* p, ptrdiff_t n) { return n == LANES ? load(p) : load_part(p, n); }
INLINE void put(REAL* p, vector x, ptrdiff_t n) {
    if (n == LANES) store(p, x);
    else store_part(p, x, n);
}
