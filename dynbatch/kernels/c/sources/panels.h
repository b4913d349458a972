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

// Write the words of n numbers of two rows, the second of which may be NULL, and zeros to a whole vector.
INLINE void put_line(
    ptrdiff_t n, const void* first, const void* second, const int is_short, REAL* to) {
    ptrdiff_t j = 0;
    for (; second && n - j >= LANES; j += LANES) {
        const void *one = element(first, j, is_short), *next = element(second, j, is_short);
        store(to + j, words_of_rows(one, next, LANES, is_short));
    }
    for (; j < n; j += LANES) {
        const void* next = second ? element(second, j, is_short) : NULL;
        store(to + j,
            words_of_rows(element(first, j, is_short), next, least(n - j, LANES), is_short));
    }
}
INLINE void put_words(ptrdiff_t n, const void* first, const void* second, int is_short, REAL* to) {
    if (is_short) put_line(n, first, second, 1, to);
    else put_line(n, first, second, 0, to);
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
        const void *one = element(b, k * row, is_short), *next = NULL;
        if (TERMS == 1 || taken > 1) next = element(one, TERMS > 1 ? row : 0, is_short);
        if (taken == TERMS || (!which && at + 1 == terms))
            put_words(columns, one, next, is_short, to);
        else EACH_VECTOR(j, n, columns) {
                const void* from = element(one, j, is_short);
                store_terms(to + j, which, words_of_rows(from, NULL, n, is_short));
            }
    }
}

// Whole vectors of words of LANES lines of numbers, which lie `line` apart.
INLINE void full_lines(const void* from, ptrdiff_t line, int is_short, vector* x) {
    if (is_short)
#pragma GCC unroll 16
        for (ptrdiff_t i = 0; i < LANES; i++)
            x[i] = words_in_line(element(from, i * line, 1), LANES * TERMS, 1);
    else
#pragma GCC unroll 16
        for (ptrdiff_t i = 0; i < LANES; i++)
            x[i] = words_in_line(element(from, i * line, 0), LANES * TERMS, 0);
}

// Pack one panel of at most PANEL columns of b (K, columns), whose elements lie `row` and `column`
// apart, of numbers or their upper halves.
static __attribute__((noinline)) void pack_panel(ptrdiff_t K, ptrdiff_t columns, const void* b,
    int is_short, ptrdiff_t row, ptrdiff_t column, REAL* panel) {
    ptrdiff_t width = (columns + LANES - 1) & -LANES;
    if (column == 1) {
        pack_rows(K, 0, K, columns, b, is_short, row, panel);
        return;
    }
    EACH_VECTOR(j, n, columns) {
        EACH_WORDS(k, terms, K) {
            vector x[LANE_COUNT];
            const void* from = element(b, j * column + k * row, is_short);
            if (row == 1 && n == LANES && terms == LANES * TERMS) {
                full_lines(from, column, is_short, x);
            } else {
                memset(x, 0, sizeof x);
                for (ptrdiff_t i = 0; i < n; i++)
                    x[i] = words_at(element(from, i * column, is_short), row, terms, is_short);
            }
            transpose(x);
            REAL* to = panel + k / TERMS * width + j;
            for (ptrdiff_t i = 0; i < WORDS(terms); i++) store(to + i * width, x[i]);
        }
    }
}

// Pack the panels `first` to `last` - 1 of b (K, N), whose elements lie `row` and `column` apart.
static void pack_panels(ptrdiff_t first, ptrdiff_t last, ptrdiff_t K, ptrdiff_t N, const void* b,
    int is_short, ptrdiff_t row, ptrdiff_t column, REAL* panels) {
    for (ptrdiff_t j = first * PANEL; j < least(last * PANEL, N); j += PANEL)
        pack_panel(K, least(N - j, PANEL), element(b, j * column, is_short), is_short, row, column,
            panels + WORDS(K) * j);
}

// Rows of words for tiles, `*row` and `*word` apart, of so many terms of `a`, numbers or their upper
// halves, whose elements lie `*row` and `*word` apart: where it lies, or made in `block`, unless they
// are there already.
INLINE const REAL* rows_of_words(int are_made, ptrdiff_t rows, ptrdiff_t terms, const void* a,
    int is_short, ptrdiff_t* row, ptrdiff_t* word, REAL* block) {
    ptrdiff_t a_row = *row, a_term = *word;
    int are_columns = a_row == 1 && a_term != 1;  // perhaps powers of two apart
    if (are_words(a, is_short, a_row, a_term, terms)) {
        *row /= TERMS;
        return a;
    }
    if (TERMS == 1 && !is_short && !are_columns) return a;
    *row = are_columns ? 1 : WORDS(terms), *word = are_columns ? rows : 1;
    if (are_made) return block;
    if (are_columns)  // a line's zeros are overwritten by the next one, and there is room for the last's
        for (ptrdiff_t k = 0; k < terms; k += TERMS) {
            const void *from = element(a, k * a_term, is_short), *next = NULL;
            if (TERMS == 1 || k + 1 < terms) next = element(from, TERMS > 1 ? a_term : 0, is_short);
            put_words(rows, from, next, is_short, block + k / TERMS * rows);
        }
    else
        for (ptrdiff_t i = 0; i < rows; i++) EACH_WORDS(k, some, terms) {
                const void* from = element(a, i * a_row + k * a_term, is_short);
                vector words = words_at(from, a_term, some, is_short);
                put(block + i * *row + k / TERMS, words, WORDS(some));
            }
    return block;
}
