// Products of rows with a matrix in packed panels: c = a b + base.
//
// An element's sum goes through its K terms in order, in parts of at most PART terms; the sums of
// the parts are added in order, to `base` last of the first. So a row's result has the same bits
// whatever rows and columns are computed with it.
//
// A tile of TILE_ROWS rows by a panel is summed in registers, as in BLIS (Van Zee and van de Geijn,
// 2015).
#include "panels.h"

#define GROUP (VECTOR_BYTES * 16 / REAL_BYTES)  // columns
#define ROW_BLOCK 96
// Rows of a that are made words once for all groups of columns.
#define MADE_ROWS (TERMS > 1 ? 8 * ROW_BLOCK : ROW_BLOCK)
// Rows that read a b where it lies: each tile rounds it anew.
#define FEW_ROWS (TERMS > 1 ? 2 * TILE_ROWS : VECTOR_BYTES == 64 ? 256 : 16)

// The form in which a panel lies: as words, as numbers, or as their upper halves.
enum { AS_WORDS, AS_NUMBERS, AS_HALVES };

// A vector of a panel's row: its words, or those of this row and the next, `step` apart, if so many
// terms are left.
INLINE vector panel_words(
    const int form, ptrdiff_t terms, const void* panel, ptrdiff_t j, ptrdiff_t step) {
    if (form == AS_WORDS) return load((const REAL*)panel + j);
    const int is_short = form == AS_HALVES;
    const void* next = terms > 1 ? element(panel, j + step, is_short) : NULL;
    return words_of_rows(element(panel, j, is_short), next, LANES, is_short);
}

// Rows by one panel of `vectors` vectors, whose rows begin `step` apart: c = base + a panel, over K
// words, or terms if the panel lies as numbers; a NULL `base` is zero.
#define TILE_ARGUMENTS                                                                \
    ptrdiff_t K, const REAL *a, ptrdiff_t a_row, ptrdiff_t a_word, const void *panel, \
        ptrdiff_t step, const REAL *base, ptrdiff_t base_stride, REAL *c, ptrdiff_t ldc

INLINE void tile(const int rows, const int vectors, const int form, TILE_ARGUMENTS) {
    vector sum[TILE_ROWS][PANEL_VECTORS];
    const ptrdiff_t terms = form == AS_WORDS ? 1 : TERMS;
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) sum[i][j] = (vector){0};
#pragma GCC unroll 2
    for (ptrdiff_t k = 0; k < K; k += terms) {
#pragma GCC unroll 2
        for (int s = 0; s < STEPS; s++) {
            vector b[PANEL_VECTORS];
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++)
                b[j] = factor(panel_words(form, K - k, panel, j * LANES, step), s);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                vector x = factor(word(a + i * a_row), s);
#pragma GCC unroll 8
                for (int j = 0; j < vectors; j++) sum[i][j] = add_product(x, b[j], sum[i][j]);
            }
        }
        a += a_word;
        panel = element(panel, terms * step, form == AS_HALVES);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            if (base) sum[i][j] += load(base + i * base_stride + j * LANES);
            store(c + i * ldc + j * LANES, sum[i][j]);
        }
}

typedef void tile_function(TILE_ARGUMENTS);
#define ONE_TILE(name, rows, vectors, form)                                                     \
    static __attribute__((noinline)) void name##_##rows##_##vectors(TILE_ARGUMENTS) {           \
        tile(rows, vectors, form, K, a, a_row, a_word, panel, step, base, base_stride, c, ldc); \
    }
#define TILE(rows, vectors) ONE_TILE(tile, rows, vectors, AS_WORDS)
#define NAME(rows, vectors) tile_##rows##_##vectors,
#define TILE_BY_NUMBERS(rows, vectors) ONE_TILE(tile_by_numbers, rows, vectors, AS_NUMBERS)
#define NAME_BY_NUMBERS(rows, vectors) tile_by_numbers_##rows##_##vectors,
#define TILE_BY_HALVES(rows, vectors) ONE_TILE(tile_by_halves, rows, vectors, AS_HALVES)
#define NAME_BY_HALVES(rows, vectors) tile_by_halves_##rows##_##vectors,
#if TILE_ROWS == 6
#define EACH_HEIGHT(X, vectors) \
    X(1, vectors) X(2, vectors) X(3, vectors) X(4, vectors) X(5, vectors) X(6, vectors)
#else
#define EACH_HEIGHT(X, vectors) X(1, vectors) X(2, vectors) X(3, vectors) X(4, vectors)
#endif
#if PANEL_VECTORS == 4
#define EACH_TILE(X) EACH_HEIGHT(X, 1) EACH_HEIGHT(X, 2) EACH_HEIGHT(X, 3) EACH_HEIGHT(X, 4)
#define TABLE(X)                                                                             \
    {                                                                                        \
        {EACH_HEIGHT(X, 1)}, {EACH_HEIGHT(X, 2)}, {EACH_HEIGHT(X, 3)}, { EACH_HEIGHT(X, 4) } \
    }
#else
#define EACH_TILE(X) EACH_HEIGHT(X, 1) EACH_HEIGHT(X, 2)
#define TABLE(X)                                   \
    {                                              \
        {EACH_HEIGHT(X, 1)}, { EACH_HEIGHT(X, 2) } \
    }
#endif
EACH_TILE(TILE)
#if TERMS > 1
EACH_TILE(TILE_BY_NUMBERS)
EACH_TILE(TILE_BY_HALVES)
#endif

// By the panel's form; where a term is a word, halves are packed.
static tile_function* const TILES[][PANEL_VECTORS][TILE_ROWS] = {
    TABLE(NAME),
#if TERMS > 1
    TABLE(NAME_BY_NUMBERS),
    TABLE(NAME_BY_HALVES),
#endif
};

// Rows by one panel whose last vector is not full: computed aside, as nothing beyond a row of `base`
// and `c` may be touched.
static __attribute__((noinline)) void ragged_tile(
    tile_function* whole, ptrdiff_t rows, ptrdiff_t columns, TILE_ARGUMENTS) {
    REAL aside[TILE_ROWS * PANEL];
    whole(K, a, a_row, a_word, panel, step, NULL, 0, aside, PANEL);
    for (ptrdiff_t i = 0; i < rows; i++) EACH_VECTOR(j, n, columns) {
            vector x = get(aside + i * PANEL + j, n);
            if (base) x += get(base + i * base_stride + j, n);
            put(c + i * ldc + j, x, n);
        }
}

// Rows by one panel of `columns` columns: tiles of about even heights.
static __attribute__((noinline)) void rows_by_panel(
    int form, ptrdiff_t M, ptrdiff_t columns, TILE_ARGUMENTS) {
    ptrdiff_t tiles = (M + TILE_ROWS - 1) / TILE_ROWS, vectors = (columns + LANES - 1) / LANES;
    for (ptrdiff_t t = 0, i = 0; t < tiles; t++) {
        ptrdiff_t rows = M * (t + 1) / tiles - i;
        tile_function* whole = TILES[form][vectors - 1][rows - 1];
        const REAL *from = a + i * a_row, *plus = base ? base + i * base_stride : NULL;
        REAL* to = c + i * ldc;
        if (columns == vectors * LANES)
            whole(K, from, a_row, a_word, panel, step, plus, base_stride, to, ldc);
        else
            ragged_tile(whole, rows, columns, K, from, a_row, a_word, panel, step, plus,
                base_stride, to, ldc);
        i += rows;
    }
}

// c (M, N) = a (M, K) b + base, for b (K, N) in panels. Rows of a, base and c begin lda, base_stride
// and ldc elements apart. `base` may be c itself, which adds to it, one row for all (base_stride 0),
// or NULL. c may not overlap a.
static void product(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const REAL* a, ptrdiff_t lda,
    const REAL* panels, const REAL* base, ptrdiff_t base_stride, REAL* c, ptrdiff_t ldc) {
    static _Thread_local REAL block[PART_WORDS * ROW_BLOCK] __attribute__((aligned(64)));
    unsigned long mode = begin_product();
    ptrdiff_t k = 0;
    do {  // once for K = 0 too, which is c = base
        ptrdiff_t terms = least(K - k, PART);
        for (ptrdiff_t i = 0; i < M; i += ROW_BLOCK) {
            ptrdiff_t rows = least(M - i, ROW_BLOCK), row = lda, word = 1;
            const REAL* top = rows_of_words(0, rows, terms, a + i * lda + k, 0, &row, &word, block);
            for (ptrdiff_t j = 0; j < N; j += PANEL) {
                ptrdiff_t columns = least(N - j, PANEL), width = (columns + LANES - 1) & -LANES;
                rows_by_panel(AS_WORDS, rows, columns, WORDS(terms), top, row, word,
                    panels + WORDS(K) * j + k / TERMS * width, width,
                    base ? base + i * base_stride + j : NULL, base_stride, c + i * ldc + j, ldc);
            }
        }
        k += terms, base = c, base_stride = ldc;
    } while (k < K);
    end_product(mode);
}

// c (M, N) = a b + base for a (M, K) whose elements lie `a_row` and `a_term` apart, and b (K, N) whose
// elements lie `b_term` and `b_column` apart, numbers or their upper halves: packed group by group into
// memory of this thread, or read where it lies if packing costs more than few rows gain.
static void unpacked_product(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const void* a, int a_is_short,
    ptrdiff_t a_row, ptrdiff_t a_term, const void* b, int b_is_short, ptrdiff_t b_term,
    ptrdiff_t b_column, const REAL* base, ptrdiff_t base_stride, REAL* c, ptrdiff_t ldc) {
    static _Thread_local REAL group[PART_WORDS * GROUP] __attribute__((aligned(64)));
    static _Thread_local REAL made[PART_WORDS * MADE_ROWS] __attribute__((aligned(64)));
    const int are_there = are_words(a, a_is_short, a_row, a_term, K);
    if (TERMS > 1 && M > MADE_ROWS && !are_there) {
        for (ptrdiff_t i = 0; i < M; i += MADE_ROWS)
            unpacked_product(least(M - i, MADE_ROWS), K, N, element(a, i * a_row, a_is_short),
                a_is_short, a_row, a_term, b, b_is_short, b_term, b_column,
                base ? base + i * base_stride : NULL, base_stride, c + i * ldc, ldc);
        return;
    }
    unsigned long mode = begin_product();
    int in_place = b_column == 1 && M <= FEW_ROWS && (TERMS > 1 || !b_is_short);
    ptrdiff_t k = 0, made_row = TERMS > 1 && N > GROUP && !are_there ? PART_WORDS : 0;
    do {
        ptrdiff_t terms = least(K - k, PART);
        for (ptrdiff_t first = 0; first < N; first += GROUP) {
            ptrdiff_t last = least(first + GROUP, N);
            for (ptrdiff_t i = 0; i < M; i += ROW_BLOCK) {
                ptrdiff_t rows = least(M - i, ROW_BLOCK), row = a_row, word = a_term;
                const REAL* top = rows_of_words(TERMS > 1 && first, rows, terms,
                    element(a, i * a_row + k * a_term, a_is_short), a_is_short, &row, &word,
                    made + i * made_row);
                for (ptrdiff_t j = first; j < last; j += PANEL) {
                    ptrdiff_t columns = least(last - j, PANEL), length = WORDS(terms);
                    ptrdiff_t step = (columns + LANES - 1) & -LANES;
                    const void* from = element(b, k * b_term + j * b_column, b_is_short);
                    const void* panel = from;
                    int form = AS_WORDS;
                    if (in_place && step == columns) {
                        step = b_term;
                        if (TERMS > 1) form = b_is_short ? AS_HALVES : AS_NUMBERS, length = terms;
                    } else {
                        REAL* packed = group + WORDS(terms) * (j - first);
                        if (!i)
                            pack_panel(terms, columns, from, b_is_short, b_term, b_column, packed);
                        panel = packed;
                    }
                    rows_by_panel(form, rows, columns, length, top, row, word, panel, step,
                        base ? base + i * base_stride + j : NULL, base_stride, c + i * ldc + j,
                        ldc);
                }
            }
        }
        k += terms, base = c, base_stride = ldc;
    } while (k < K);
    end_product(mode);
}
