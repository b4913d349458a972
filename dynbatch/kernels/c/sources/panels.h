// Factors of products packed for tiles: b in panels, a in rows of words.
//
// Panels: b's columns in groups of PANEL, the WORDS(K) words of a group one after the other, of
// every column one. The last group may be narrower; it is filled with zeros to whole vectors.
#include "factors.h"

#define PANEL_VECTORS 4
#if defined(__AVX512F__)
#define TILE_ROWS 6  // 24 of 32 registers are sums
#elif defined(__AVX__)
#undef PANEL_VECTORS
#define PANEL_VECTORS 2
#define TILE_ROWS 6  // 12 of 16
#else
#undef PANEL_VECTORS
#define PANEL_VECTORS 2
#define TILE_ROWS 4
#endif
#define PANEL (PANEL_VECTORS * LANES)

// Terms of a part. A group of panels' parts, 256 KiB, lies in the second-level cache.
#define PART_WORDS 256
#define PART (PART_WORDS * TERMS)

// LANES vectors as columns instead of rows: each stage interleaves the first half of the vectors
// with the second.
#if LANE_COUNT == 16
#define LOWER 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define UPPER 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANE_COUNT == 8
#define LOWER 0, 8, 1, 9, 2, 10, 3, 11
#define UPPER 4, 12, 5, 13, 6, 14, 7, 15
#elif LANE_COUNT == 4
#define LOWER 0, 4, 1, 5
#define UPPER 2, 6, 3, 7
#else
#define LOWER 0, 2
#define UPPER 1, 3
#endif
INLINE void transpose(vector* x) {
    vector y[LANE_COUNT];
#pragma GCC unroll 4
    for (int stage = 1; stage < LANE_COUNT; stage *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < LANE_COUNT / 2; i++) {
            y[2 * i] = __builtin_shufflevector(x[i], x[i + LANE_COUNT / 2], LOWER);
            y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + LANE_COUNT / 2], UPPER);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANE_COUNT; i++) x[i] = y[i];
    }
}

// Element i of a matrix that is packed: of numbers, or of the upper halves of such; and the first n
// numbers there.
INLINE const void* element(const void* b, ptrdiff_t i, int is_short) {
    return (const char*)b + i * (ptrdiff_t)(is_short ? sizeof(uint16_t) : sizeof(REAL));
}
INLINE vector get_either(const void* p, ptrdiff_t n, int is_short) {
    return is_short ? get_short(p, n) : get(p, n);
}

// Write rows of b, whose elements lie side by side, as terms `first` to `first` + K - 1 of a panel of
// `terms` terms. In a word that they share with others, which may be written meanwhile, they touch
// their own halves.
static __attribute__((noinline)) void pack_rows(ptrdiff_t terms, ptrdiff_t first, ptrdiff_t K,
    ptrdiff_t columns, const void* b, int is_short, ptrdiff_t row, REAL* panel) {
    ptrdiff_t width = (columns + LANES - 1) & -LANES;
    for (ptrdiff_t k = 0, taken; k < K; k += taken) {
        ptrdiff_t at = first + k, which = at % TERMS;
        taken = which ? 1 : least(TERMS, K - k);
        REAL* to = panel + at / TERMS * width;
        EACH_VECTOR(j, n, columns) {
            vector one = get_either(element(b, k * row + j, is_short), n, is_short), next = {0};
            if (taken > 1) next = get_either(element(b, (k + 1) * row + j, is_short), n, is_short);
            if (which) store_second(to + j, two_rows(next, one));
            else if (taken < TERMS && at + 1 < terms) store_first(to + j, two_rows(one, next));
            else store(to + j, two_rows(one, next));
        }
    }
}

// Pack one panel of at most PANEL columns of b (K, columns), whose elements lie `row` and `column`
// apart.
static __attribute__((noinline)) void pack_panel(
    ptrdiff_t K, ptrdiff_t columns, const REAL* b, ptrdiff_t row, ptrdiff_t column, REAL* panel) {
    ptrdiff_t width = (columns + LANES - 1) & -LANES;
    if (column == 1) {
        pack_rows(K, 0, K, columns, b, 0, row, panel);
        return;
    }
    EACH_VECTOR(j, n, columns) {
        EACH_WORDS(k, terms, K) {
            vector x[LANE_COUNT];
            const REAL* from = b + j * column + k * row;
            if (row == 1 && n == LANES && terms == LANES * TERMS) {
#pragma GCC unroll 16
                for (ptrdiff_t i = 0; i < LANES; i++)
                    x[i] = side_by_side(from + i * column, LANES * TERMS);
            } else {
                memset(x, 0, sizeof x);
                for (ptrdiff_t i = 0; i < n; i++) x[i] = words_at(from + i * column, row, terms);
            }
            transpose(x);
            REAL* to = panel + k / TERMS * width + j;
            for (ptrdiff_t i = 0; i < WORDS(terms); i++) store(to + i * width, x[i]);
        }
    }
}

// The same of upper halves, as bfloat16.h reads them.
static __attribute__((noinline)) void pack_short_panel(ptrdiff_t K, ptrdiff_t columns,
    const uint16_t* b, ptrdiff_t row, ptrdiff_t column, REAL* panel) {
    ptrdiff_t width = (columns + LANES - 1) & -LANES;
    if (column == 1) {
        pack_rows(K, 0, K, columns, b, 1, row, panel);
        return;
    }
    EACH_VECTOR(j, n, columns) {
        EACH_WORDS(k, terms, K) {
            vector x[LANE_COUNT];
            memset(x, 0, sizeof x);
            for (ptrdiff_t i = 0; i < n; i++) {
                const uint16_t* from = b + (j + i) * column + k * row;
                uint16_t line[LANE_COUNT * TERMS] = {0};
                if (row != 1)
                    for (ptrdiff_t t = 0; t < terms; t++) line[t] = from[t * row];
                x[i] = short_side_by_side(row == 1 ? from : line, row == 1 ? terms : LANES * TERMS);
            }
            transpose(x);
            REAL* to = panel + k / TERMS * width + j;
            for (ptrdiff_t i = 0; i < WORDS(terms); i++) store(to + i * width, x[i]);
        }
    }
}

// Pack the panels `first` to `last` - 1 of b (K, N), whose elements lie `row` and `column` apart.
static void pack_panels(ptrdiff_t first, ptrdiff_t last, ptrdiff_t K, ptrdiff_t N, const REAL* b,
    ptrdiff_t row, ptrdiff_t column, REAL* panels) {
    for (ptrdiff_t j = first * PANEL; j < least(last * PANEL, N); j += PANEL)
        pack_panel(K, least(N - j, PANEL), b + j * column, row, column, panels + WORDS(K) * j);
}

// Rows of words for tiles, `*row` and `*word` apart, of so many terms of `a`, whose elements lie
// `*row` and `*word` apart: where it lies, or made in `block`, unless they are there already.
INLINE const REAL* rows_of_words(int are_made, ptrdiff_t rows, ptrdiff_t terms, const REAL* a,
    ptrdiff_t* row, ptrdiff_t* word, REAL* block) {
    ptrdiff_t a_row = *row, a_term = *word;
    int are_columns = a_row == 1 && a_term != 1;  // perhaps powers of two apart
    if (TERMS == 1 && !are_columns) return a;
    *row = are_columns ? 1 : WORDS(terms), *word = are_columns ? rows : 1;
    if (are_made) return block;
    if (are_columns)
        for (ptrdiff_t k = 0; k < terms; k += TERMS) EACH_VECTOR(i, n, rows) {
                const REAL *from = a + k * a_term + i, *next = k + 1 < terms ? from + a_term : NULL;
                put(block + k / TERMS * rows + i, words_of_rows(from, next, n), n);
            }
    else
        for (ptrdiff_t i = 0; i < rows; i++) EACH_WORDS(k, some, terms) {
                const REAL* from = a + i * a_row + k * a_term;
                put(block + i * *row + k / TERMS, words_at(from, a_term, some), WORDS(some));
            }
    return block;
}
