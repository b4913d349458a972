// Products of few rows with a matrix whose columns are rows in memory: of one token with weights.
//
// Sums are in the order of product.h, and have its bits.
#include "product.h"

// Few rows by a b whose columns are rows in memory, `b_column` apart: weights (N, K). Each is read
// once, in order, and turned in registers, LANES columns and terms at a time.
#define TURNED_ROWS 12
#define MOST_TURNED 32
#define TURNED_ELEMENTS (1 << 17)
#define TURNED_WORDS 64  // a power of two below PART_WORDS

// LANES words, or fewer, of LANES rows of b, turned. What is beyond them is zero.
INLINE void lines(
    ptrdiff_t terms, const void* b, const int is_short, ptrdiff_t b_column, vector* x) {
#pragma GCC unroll 16
    for (int s = 0; s < LANE_COUNT; s++) {
        const void *from = element(b, s * b_column, is_short),
                   *next = element(from, LANES * b_column, is_short);  // of the next columns
        x[s] = words_in_line(from, terms, is_short);
        __builtin_prefetch(next, 0, 2);
        if (TERMS > 1 && !is_short) __builtin_prefetch(element(next, LANES, 0), 0, 2);
    }
}
INLINE void turn(ptrdiff_t terms, const void* b, int is_short, ptrdiff_t b_column, vector* x) {
    if (is_short) lines(terms, b, 1, b_column, x);
    else lines(terms, b, 0, b_column, x);
    transpose(x);
}

// sums += a panel, for `a` with its rows' first words side by side, then their second ones.
INLINE void add_words(
    const int rows, ptrdiff_t words, const REAL* a, const REAL* panel, REAL* sums) {
    vector sum[TURNED_ROWS];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) sum[i] = load(sums + i * LANES);
#pragma GCC unroll 4
    for (ptrdiff_t w = 0; w < words; w++, a += rows) {
#pragma GCC unroll 2
        for (int s = 0; s < STEPS; s++) {
            vector x = factor(load(panel + w * LANES), s);
#pragma GCC unroll 12
            for (int i = 0; i < rows; i++) sum[i] = add_product(factor(word(a + i), s), x, sum[i]);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) store(sums + i * LANES, sum[i]);
}

// How many rows are summed together, up to three of them zeros: each sum waits for the one before,
// so that fewer than 8 at a time take as long.
static ptrdiff_t turned_height(ptrdiff_t rows) {
    if (rows > 12) return 8;
    return rows > 8 ? 12 : rows > 4 ? 8 : rows > 2 ? 4 : rows;
}

// LANES columns of a product; `a` is what `turned_product` has made of it.
static __attribute__((noinline)) void turned_columns(ptrdiff_t M, ptrdiff_t K, const REAL* a,
    const void* b, int is_short, ptrdiff_t b_column, const REAL* base, ptrdiff_t base_stride,
    REAL* c, ptrdiff_t ldc) {
    REAL panel[TURNED_WORDS * LANE_COUNT] __attribute__((aligned(64)));
    REAL sums[MOST_TURNED * LANE_COUNT] __attribute__((aligned(64)));
    ptrdiff_t k = 0;
    do {
        ptrdiff_t end = least(K, k + PART);
        memset(sums, 0, sizeof sums);
        for (ptrdiff_t terms; k < end; k += terms) {
            terms = least(TURNED_WORDS * TERMS, end - k);
            for (ptrdiff_t t = 0; t < terms; t += LANES * TERMS) {
                vector x[LANE_COUNT];
                const void* from = element(b, k + t, is_short);
                turn(least(LANES * TERMS, terms - t), from, is_short, b_column, x);
#pragma GCC unroll 16
                for (int s = 0; s < LANE_COUNT; s++) store(panel + (t / TERMS + s) * LANES, x[s]);
            }
            for (ptrdiff_t i = 0, height; i < M; i += height) {
                height = turned_height(M - i);
                const REAL* at = a + i * WORDS(K) + k / TERMS * height;
                REAL* to = sums + i * LANES;
                if (height == 12) add_words(12, WORDS(terms), at, panel, to);
                else if (height == 8) add_words(8, WORDS(terms), at, panel, to);
                else if (height == 4) add_words(4, WORDS(terms), at, panel, to);
                else if (height == 2) add_words(2, WORDS(terms), at, panel, to);
                else add_words(1, WORDS(terms), at, panel, to);
            }
        }
        for (ptrdiff_t i = 0; i < M; i++) {
            vector sum = load(sums + i * LANES);
            if (base) sum += load(base + i * base_stride);
            store(c + i * ldc, sum);
        }
        base = c, base_stride = ldc;
    } while (k < K);
}

INLINE vector add_word(const REAL* a, vector b, vector sum) {
#pragma GCC unroll 2
    for (int s = 0; s < STEPS; s++) sum = add_product(factor(word(a), s), factor(b, s), sum);
    return sum;
}

// The same of one row, with what is turned in registers.
static __attribute__((noinline)) void turned_row(ptrdiff_t K, const REAL* a, const void* b,
    int is_short, ptrdiff_t b_column, const REAL* base, REAL* c) {
    ptrdiff_t k = 0;
    do {
        vector sum = {0};
        for (ptrdiff_t end = least(K, k + PART); k < end; k += LANES * TERMS) {
            vector x[LANE_COUNT];
            ptrdiff_t terms = least(LANES * TERMS, end - k);
            turn(terms, element(b, k, is_short), is_short, b_column, x);
            if (terms == LANES * TERMS) {
#pragma GCC unroll 16
                for (int w = 0; w < LANE_COUNT; w++) sum = add_word(a + k / TERMS + w, x[w], sum);
            } else
                for (ptrdiff_t w = 0; w < WORDS(terms); w++)
                    sum = add_word(a + k / TERMS + w, x[w], sum);
        }
        if (base) sum += load(base);
        store(c, sum);
        base = c;
    } while (k < K);
}

// The whole vectors of columns of such a product of at most MOST_TURNED rows, whose terms lie side by
// side. Returns how many columns these are.
static ptrdiff_t turned_product(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const void* a,
    int a_is_short, ptrdiff_t a_row, const void* b, int b_is_short, ptrdiff_t b_column,
    const REAL* base, ptrdiff_t base_stride, REAL* c, ptrdiff_t ldc) {
    static _Thread_local REAL turned[TURNED_ELEMENTS];
    ptrdiff_t words = WORDS(K), size = (M > 1 ? M + 3 : 0) * words;
    if (size + (TERMS > 1 || a_is_short ? M * words : 0) > TURNED_ELEMENTS) return 0;
    ptrdiff_t a_word = 1;
    const REAL* rows = rows_of_words(0, M, K, a, a_is_short, &a_row, &a_word, turned + size);
    if (M > 1) {
        REAL* to = turned;
        for (ptrdiff_t i = 0, height; i < M; i += height) {
            height = turned_height(M - i);
            for (ptrdiff_t w = 0; w < words; w++)
                for (ptrdiff_t r = i; r < i + height; r++) *to++ = r < M ? rows[r * a_row + w] : 0;
        }
        rows = turned;
    }
    unsigned long mode = begin_product();
    ptrdiff_t j = 0;
    if (M == 1)
        for (; j + LANES <= N; j += LANES)
            turned_row(K, rows, element(b, j * b_column, b_is_short), b_is_short, b_column,
                base ? base + j : NULL, c + j);
    for (; j + LANES <= N; j += LANES)
        turned_columns(M, K, rows, element(b, j * b_column, b_is_short), b_is_short, b_column,
            base ? base + j : NULL, base_stride, c + j, ldc);
    end_product(mode);
    return j;
}
