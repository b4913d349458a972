// Products of rows with a matrix in packed panels: c = a b + base.
//
// An element's sum goes through its K terms in order, in parts of at most PART terms; the sums of
// the parts are added in order, to `base` last of the first. So a row's result has the same bits
// whatever rows and columns are computed with it.
//
// Panels: b's columns in groups of PANEL, the K rows of a group one after the other. The last group
// may be narrower; it is filled with zeros to whole vectors. A tile of TILE_ROWS rows by a panel is
// summed in registers, as in BLIS (Van Zee and van de Geijn, 2015).
#include "common.h"

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
#define PART 256
#define GROUP (VECTOR_BYTES * 16 / REAL_BYTES)  // columns
#define ROW_BLOCK 96
#define FEW_ROWS (VECTOR_BYTES == 64 ? 256 : 16)

// LANES vectors as columns instead of rows: each stage interleaves the first half of the vectors
// with the second.
#define LANE_COUNT (VECTOR_BYTES / REAL_BYTES)
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

// A factor as tensor cores round it, to FACTOR_BITS bits of mantissa: bfloat16, which has 7, to the
// nearest, of two the even one; TF32 to the nearest, of two the one further from 0. NaN and infinity
// stay. See `kernels/runtime/precision.py`.
#if defined(FACTOR_BITS) && defined(REAL_IS_FLOAT)
typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));
INLINE vector factor(vector x) {
    const uint32_t dropped = 23 - FACTOR_BITS, infinity = 0x7f800000;
    words bits = (words)x, half = (words){0} + (1u << (dropped - 1));
    if (FACTOR_BITS == 7) half += (bits >> dropped & 1) - 1;
    words nearest = (bits + half) >> dropped << dropped;
    return choose((mask)((bits & infinity) != infinity), (vector)nearest, x);
}
#else
INLINE vector factor(vector x) { return x; }
#endif

// Pack one panel of at most PANEL columns of b (K, columns), whose elements lie `row` and `column`
// apart.
static __attribute__((noinline)) void pack_panel(
    ptrdiff_t K, ptrdiff_t columns, const REAL* b, ptrdiff_t row, ptrdiff_t column, REAL* panel) {
    ptrdiff_t width = (columns + LANES - 1) & -LANES;
    if (column == 1) {
        for (ptrdiff_t k = 0; k < K; k++)
            EACH_VECTOR(j, n, columns) store(panel + k * width + j, get(b + k * row + j, n));
        return;
    }
    EACH_VECTOR(j, n, columns) {
        EACH_VECTOR(k, terms, K) {
            vector x[LANE_COUNT];
            const REAL* from = b + j * column + k * row;
            if (row == 1 && n == LANES && terms == LANES) {
#pragma GCC unroll 16
                for (ptrdiff_t i = 0; i < LANE_COUNT; i++) x[i] = load(from + i * column);
            } else {
                memset(x, 0, sizeof x);
                for (ptrdiff_t i = 0; i < n; i++)
                    for (ptrdiff_t s = 0; s < terms; s++) x[i][s] = from[i * column + s * row];
            }
            transpose(x);
            for (ptrdiff_t i = 0; i < terms; i++) store(panel + (k + i) * width + j, x[i]);
        }
    }
}

// Pack the panels `first` to `last` - 1 of b (K, N), whose elements lie `row` and `column` apart.
static void pack_panels(ptrdiff_t first, ptrdiff_t last, ptrdiff_t K, ptrdiff_t N, const REAL* b,
    ptrdiff_t row, ptrdiff_t column, REAL* panels) {
    for (ptrdiff_t j = first * PANEL; j < least(last * PANEL, N); j += PANEL)
        pack_panel(K, least(N - j, PANEL), b + j * column, row, column, panels + K * j);
}

// Rows by one panel of `vectors` vectors, whose rows begin `step` apart: c = base + a panel, over K
// terms; a NULL `base` is zero.
#define TILE_ARGUMENTS                                                                \
    ptrdiff_t K, const REAL *a, ptrdiff_t a_row, ptrdiff_t a_term, const REAL *panel, \
        ptrdiff_t step, const REAL *base, ptrdiff_t base_stride, REAL *c, ptrdiff_t ldc

INLINE void tile(const int rows, const int vectors, TILE_ARGUMENTS) {
    vector sum[TILE_ROWS][PANEL_VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) sum[i][j] = (vector){0};
#pragma GCC unroll 2
    for (ptrdiff_t k = 0; k < K; k++) {
        vector b[PANEL_VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) b[j] = factor(load(panel + j * LANES));
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vector x = factor(splat(a[i * a_row]));
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) sum[i][j] = multiply_add(x, b[j], sum[i][j]);
        }
        a += a_term;
        panel += step;
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
#define TILE(rows, vectors)                                                               \
    static __attribute__((noinline)) void tile_##rows##_##vectors(TILE_ARGUMENTS) {       \
        tile(rows, vectors, K, a, a_row, a_term, panel, step, base, base_stride, c, ldc); \
    }
#if TILE_ROWS == 6
#define EACH_HEIGHT(X, vectors) \
    X(1, vectors) X(2, vectors) X(3, vectors) X(4, vectors) X(5, vectors) X(6, vectors)
#else
#define EACH_HEIGHT(X, vectors) X(1, vectors) X(2, vectors) X(3, vectors) X(4, vectors)
#endif
#define NAME(rows, vectors) tile_##rows##_##vectors,
EACH_HEIGHT(TILE, 1)
EACH_HEIGHT(TILE, 2)
#if PANEL_VECTORS == 4
EACH_HEIGHT(TILE, 3)
EACH_HEIGHT(TILE, 4)
#endif

static tile_function* const TILES[PANEL_VECTORS][TILE_ROWS] = {
    {EACH_HEIGHT(NAME, 1)},
    {EACH_HEIGHT(NAME, 2)},
#if PANEL_VECTORS == 4
    {EACH_HEIGHT(NAME, 3)},
    {EACH_HEIGHT(NAME, 4)},
#endif
};

// Rows by one panel whose last vector is not full: computed aside, as nothing beyond a row of `base`
// and `c` may be touched.
static __attribute__((noinline)) void ragged_tile(
    tile_function* whole, ptrdiff_t rows, ptrdiff_t columns, TILE_ARGUMENTS) {
    REAL aside[TILE_ROWS * PANEL];
    whole(K, a, a_row, a_term, panel, step, NULL, 0, aside, PANEL);
    for (ptrdiff_t i = 0; i < rows; i++) EACH_VECTOR(j, n, columns) {
            vector x = get(aside + i * PANEL + j, n);
            if (base) x += get(base + i * base_stride + j, n);
            put(c + i * ldc + j, x, n);
        }
}

// Rows by one panel of `columns` columns: tiles of about even heights.
static __attribute__((noinline)) void rows_by_panel(
    ptrdiff_t M, ptrdiff_t columns, TILE_ARGUMENTS) {
    ptrdiff_t tiles = (M + TILE_ROWS - 1) / TILE_ROWS, vectors = (columns + LANES - 1) / LANES;
    for (ptrdiff_t t = 0, i = 0; t < tiles; t++) {
        ptrdiff_t rows = M * (t + 1) / tiles - i;
        tile_function* whole = TILES[vectors - 1][rows - 1];
        const REAL *from = a + i * a_row, *plus = base ? base + i * base_stride : NULL;
        REAL* to = c + i * ldc;
        if (columns == vectors * LANES)
            whole(K, from, a_row, a_term, panel, step, plus, base_stride, to, ldc);
        else
            ragged_tile(whole, rows, columns, K, from, a_row, a_term, panel, step, plus,
                base_stride, to, ldc);
        i += rows;
    }
}

// c (M, N) = a (M, K) b + base, for b (K, N) in panels. Rows of a, base and c begin lda, base_stride
// and ldc elements apart. `base` may be c itself, which adds to it, one row for all (base_stride 0),
// or NULL. c may not overlap a.
static void product(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const REAL* a, ptrdiff_t lda,
    const REAL* panels, const REAL* base, ptrdiff_t base_stride, REAL* c, ptrdiff_t ldc) {
    ptrdiff_t k = 0;
    do {  // once for K = 0 too, which is c = base
        ptrdiff_t terms = least(K - k, PART);
        for (ptrdiff_t i = 0; i < M; i += ROW_BLOCK)
            for (ptrdiff_t j = 0; j < N; j += PANEL) {
                ptrdiff_t columns = least(N - j, PANEL), width = (columns + LANES - 1) & -LANES;
                rows_by_panel(least(M - i, ROW_BLOCK), columns, terms, a + i * lda + k, lda, 1,
                    panels + K * j + k * width, width, base ? base + i * base_stride + j : NULL,
                    base_stride, c + i * ldc + j, ldc);
            }
        k += terms, base = c, base_stride = ldc;
    } while (k < K);
}

// c (M, N) = a b + base for a (M, K) whose elements lie `a_row` and `a_term` apart, and b (K, N) whose
// elements lie `b_term` and `b_column` apart: packed group by group into memory of this thread, or
// read where it lies if packing costs more than few rows gain.
static void unpacked_product(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const REAL* a, ptrdiff_t a_row,
    ptrdiff_t a_term, const REAL* b, ptrdiff_t b_term, ptrdiff_t b_column, const REAL* base,
    ptrdiff_t base_stride, REAL* c, ptrdiff_t ldc) {
    static _Thread_local REAL group[PART * GROUP] __attribute__((aligned(64)));
    static _Thread_local REAL block[PART * ROW_BLOCK] __attribute__((aligned(64)));
    int in_place = b_column == 1 && M <= FEW_ROWS;
    for (ptrdiff_t first = 0; first < N; first += GROUP) {
        ptrdiff_t last = least(first + GROUP, N), k = 0;
        const REAL* plus = base;
        ptrdiff_t plus_stride = base_stride;
        do {
            ptrdiff_t terms = least(K - k, PART);
            for (ptrdiff_t i = 0; i < M; i += ROW_BLOCK) {
                ptrdiff_t rows = least(M - i, ROW_BLOCK), row = a_row, term = a_term;
                const REAL* top = a + i * a_row + k * a_term;
                if (a_row == 1 && a_term != 1) {  // columns, perhaps powers of two apart
                    for (ptrdiff_t s = 0; s < terms; s++)
                        memcpy(block + s * rows, top + s * a_term, (size_t)rows * sizeof(REAL));
                    top = block, term = rows;
                }
                for (ptrdiff_t j = first; j < last; j += PANEL) {
                    ptrdiff_t columns = least(last - j, PANEL);
                    ptrdiff_t step = (columns + LANES - 1) & -LANES;
                    const REAL *from = b + k * b_term + j * b_column, *panel = from;
                    if (in_place && step == columns) {
                        step = b_term;
                    } else {
                        REAL* packed = group + terms * (j - first);
                        if (!i) pack_panel(terms, columns, from, b_term, b_column, packed);
                        panel = packed;
                    }
                    rows_by_panel(rows, columns, terms, top, row, term, panel, step,
                        plus ? plus + i * plus_stride + j : NULL, plus_stride, c + i * ldc + j,
                        ldc);
                }
            }
            k += terms, plus = c, plus_stride = ldc;
        } while (k < K);
    }
}
