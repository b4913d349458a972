// Factors of products, in words of TERMS terms, one a lane: a number, or a pair of bfloat16.
//
// In bfloat16 a sum takes pairs in order, (a, b) times (c, d), and of each the second terms first, in
// one rounding each: sum = a c + (b d + sum), as the instruction vdpbf16ps does. What lacks a second
// term is filled up with zero. A factor goes to the nearest number with 8 bits, of two the even one,
// and subnormal numbers count as 0: factors, sums and results. Without the instruction, or with
// EMULATED defined, plain arithmetic gives the same bits.
#include "bfloat16.h"

#if defined(REAL_IS_FLOAT) && FACTOR_BITS == 7
#define TERMS 2
#else
#define TERMS 1
#endif
#if TERMS == 2 && defined(__AVX512BF16__) && !defined(EMULATED)
#define BY_INSTRUCTION 1
#endif
#define WORDS(terms) (((terms) + TERMS - 1) / TERMS)

// Multiply-adds that a word takes, one after the other.
#if TERMS == 2 && !defined(BY_INSTRUCTION)
#define STEPS 2
#else
#define STEPS 1
#endif

#define LANE_COUNT (VECTOR_BYTES / REAL_BYTES)

// word: one in all lanes.
// factor: what vectors of words bring to a step.
// add_product: the sum of a step, for what `factor` gives.
// two_rows: words of two rows of numbers; the second is not read where a word is one term.
// side_by_side: words of numbers that lie one after the other, at most LANES TERMS.
#if TERMS == 1

INLINE vector word(const REAL* p) { return splat(*p); }
INLINE vector two_rows(vector first, vector second) { return (void)second, first; }
INLINE vector side_by_side(const REAL* p, ptrdiff_t terms) { return get(p, terms); }
INLINE vector add_product(vector a, vector b, vector sum) { return multiply_add(a, b, sum); }

// As tensor cores round it, to FACTOR_BITS bits of mantissa: TF32 to the nearest, of two the one
// further from 0. NaN and infinity stay. See `kernels/runtime/precision.py`.
#if defined(FACTOR_BITS) && defined(REAL_IS_FLOAT)
INLINE vector factor(vector x, int step) {
    const uint32_t dropped = 23 - FACTOR_BITS;
    bit_vector bits = (bit_vector)x, half = (bit_vector){0} + (1u << (dropped - 1));
    bit_vector nearest = (bits + half) >> dropped << dropped;
    return choose((mask)((bits & INFINITE) != INFINITE), (vector)nearest, x);
}
#else
INLINE vector factor(vector x, int step) { return x; }
#endif

#else

INLINE vector word(const REAL* p) {
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    return (vector)((bit_vector){0} + bits);
}

#ifdef BY_INSTRUCTION
INLINE vector factor(vector x, int step) { return x; }
INLINE vector add_product(vector a, vector b, vector sum) {
    return (vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
INLINE vector one_after_the_other(vector first, vector second) {
    return (vector)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}
INLINE vector two_rows(vector first, vector second) {
    static const short order[] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9,
        25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i halves = (__m512i)one_after_the_other(first, second);
    return (vector)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), halves);
}
#else
// The second terms of pairs, then the first ones.
INLINE vector factor(vector x, int step) {
    return (vector)(step ? (bit_vector)x << 16 : (bit_vector)x >> 16 << 16);
}
// A product of two such factors is a float, unless it is too large or small for one.
INLINE vector add_product(vector a, vector b, vector sum) {
#if defined(__x86_64__) && !defined(__FMA__)
    for (int i = 0; i < LANE_COUNT; i++) sum[i] = fmaf(a[i], b[i], sum[i]);
    return sum;
#else
    return multiply_add(a, b, sum);
#endif
}
// Rounded, in the upper halves; what is subnormal is 0.
INLINE bit_vector nearest(vector x) {
    bit_vector bits = (bit_vector)x, is_small = (bit_vector)((bits & INFINITE) == 0);
    return (is_small & bits & SIGN) | (~is_small & nearest_bfloat16(bits));
}
INLINE vector two_rows(vector first, vector second) {
    return (vector)(nearest(first) >> 16 | nearest(second));
}
#if LANE_COUNT == 16
#define FIRST 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define SECOND 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif LANE_COUNT == 8
#define FIRST 0, 2, 4, 6, 8, 10, 12, 14
#define SECOND 1, 3, 5, 7, 9, 11, 13, 15
#else
#define FIRST 0, 2, 4, 6
#define SECOND 1, 3, 5, 7
#endif
INLINE vector one_after_the_other(vector first, vector second) {
    return two_rows(__builtin_shufflevector(first, second, FIRST),
        __builtin_shufflevector(first, second, SECOND));
}
#endif

INLINE vector side_by_side(const REAL* p, ptrdiff_t terms) {
    if (terms == 2 * LANES) return one_after_the_other(load(p), load(p + LANES));
    vector first = get(p, least(terms, LANES)), second = {0};
    if (terms > LANES) second = load_part(p + LANES, terms - LANES);
    return one_after_the_other(first, second);
}

#endif

// Numbers may be kept as upper halves: element i of such, or of numbers, and the first n numbers there.
INLINE const void* element(const void* p, ptrdiff_t i, int is_short) {
    return (const char*)p + i * (ptrdiff_t)(is_short ? sizeof(uint16_t) : sizeof(REAL));
}
INLINE vector get_either(const void* p, ptrdiff_t n, int is_short) {
    return is_short ? get_short(p, n) : get(p, n);
}

// The words of numbers that lie side by side, at most LANES TERMS. Pairs of halves are words for an
// instruction, which itself takes subnormal numbers as 0.
INLINE vector words_in_line(const void* p, ptrdiff_t terms, int is_short) {
    if (!is_short) return side_by_side(p, terms);
#if TERMS == 1
    return get_short(p, terms);
#elif defined(BY_INSTRUCTION)
    return get_pairs(p, terms);
#else
    const uint16_t* next = (const uint16_t*)p + LANES;
    vector second = terms > LANES ? get_short(next, terms - LANES) : (vector){0};
    return one_after_the_other(get_short(p, least(terms, LANES)), second);
#endif
}

// Write the first terms of words as the first or second ones of others.
typedef uint16_t half __attribute__((may_alias));
INLINE void store_terms(REAL* p, ptrdiff_t which, vector x) {
    for (ptrdiff_t i = 0; i < LANES; i++) ((half*)(p + i))[which] = ((half*)&x)[2 * i];
}

// For the words of n terms, a vector at a time: `i`, the first term, and `part`, how many there are.
#define EACH_WORDS(i, part, n)                                     \
    for (ptrdiff_t i = 0, part = least(n, LANES * TERMS); i < (n); \
        i += LANES * TERMS, part = least((n) - i, LANES * TERMS))

// The words of n numbers of two rows, the second of which may be NULL: zeros.
INLINE vector words_of_rows(const void* first, const void* second, ptrdiff_t n, int is_short) {
#ifdef BY_INSTRUCTION
    if (is_short) {
        bit_vector words = get_halves(first, n);
        return (vector)(second ? words | get_halves(second, n) << 16 : words);
    }
#endif
    vector next = TERMS > 1 && second ? get_either(second, n, is_short) : (vector){0};
    return two_rows(get_either(first, n, is_short), next);
}

// The words of at most LANES TERMS numbers that lie `stride` apart.
INLINE vector words_at(const void* p, ptrdiff_t stride, ptrdiff_t terms, int is_short) {
    if (stride == 1) return words_in_line(p, terms, is_short);
    REAL line[LANE_COUNT * TERMS] = {0};
    for (ptrdiff_t i = 0; i < terms; i++)
        line[i] = get_either(element(p, i * stride, is_short), 1, is_short)[0];
    return side_by_side(line, LANES * TERMS);
}

// Whether rows of halves, `row` apart, of so many terms, are rows of words as they lie.
INLINE int are_words(const void* p, int is_short, ptrdiff_t row, ptrdiff_t term, ptrdiff_t terms) {
#ifdef BY_INSTRUCTION
    return is_short && term == 1 && row % 2 == 0 && terms % 2 == 0 && (uintptr_t)p % 4 == 0;
#else
    return (void)p, 0;
#endif
}

// Between these two calls subnormal numbers count as 0 in plain sums, too: a product in bfloat16
// makes them round all that it adds, so that it has the same bits with the instruction and without.
// `end_product` gets what `begin_product` returned.
#if TERMS == 2 && defined(__x86_64__)
INLINE unsigned long begin_product(void) {
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);  // results, and what is read
    return before;
}
INLINE void end_product(unsigned long before) { _mm_setcsr((unsigned)before); }
#elif TERMS == 2 && defined(__aarch64__)
INLINE unsigned long begin_product(void) {
    unsigned long before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | 1ul << 24));
    return before;
}
INLINE void end_product(unsigned long before) { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#else
INLINE unsigned long begin_product(void) { return 0; }
INLINE void end_product(unsigned long before) { (void)before; }
#endif
