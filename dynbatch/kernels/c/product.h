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

// Terms of a sum in one go: a part of a panel and of ROW_BLOCK rows lie in the second-level cache.
#define PART 512
#define ROW_BLOCK 96

// Elements of the panels of a matrix (K, N).
INLINE ptrdiff_t panels_size(ptrdiff_t K, ptrdiff_t N) { return K * ((N + LANES - 1) & -LANES); }

// Pack the panels `first` to `last` - 1 of b (K, N), whose elements lie `row` and `column` apart.
static void pack_panels(ptrdiff_t first, ptrdiff_t last, ptrdiff_t K, ptrdiff_t N, const REAL* b,
    ptrdiff_t row, ptrdiff_t column, REAL* panels) {
    for (ptrdiff_t j = first * PANEL; j < least(last * PANEL, N); j += PANEL) {
        ptrdiff_t columns = least(N - j, PANEL), width = (columns + LANES - 1) & -LANES;
        REAL* panel = panels + K * j;
        for (ptrdiff_t k = 0; k < K; k++, panel += width) {
            const REAL* from = b + k * row + j * column;
            if (column == 1) {
                EACH_VECTOR(i, n, columns) store(panel + i, get(from + i, n));
            } else {
                for (ptrdiff_t i = 0; i < columns; i++) panel[i] = from[i * column];
                for (ptrdiff_t i = columns; i < width; i++) panel[i] = 0;
            }
        }
    }
}

// Rows by one panel of `vectors` vectors: c = base + a panel, over K terms; a NULL `base` is zero.
#define TILE_ARGUMENTS                                                              \
    ptrdiff_t K, const REAL *a, ptrdiff_t lda, const REAL *panel, const REAL *base, \
        ptrdiff_t base_stride, REAL *c, ptrdiff_t ldc

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
        for (int j = 0; j < vectors; j++) b[j] = load(panel + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vector x = splat(a[i * lda + k]);
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) sum[i][j] += x * b[j];
        }
        panel += vectors * LANES;
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
#define TILE(rows, vectors)                                                         \
    static __attribute__((noinline)) void tile_##rows##_##vectors(TILE_ARGUMENTS) { \
        tile(rows, vectors, K, a, lda, panel, base, base_stride, c, ldc);           \
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
    whole(K, a, lda, panel, NULL, 0, aside, PANEL);
    for (ptrdiff_t i = 0; i < rows; i++) EACH_VECTOR(j, n, columns) {
            vector x = get(aside + i * PANEL + j, n);
            if (base) x += get(base + i * base_stride + j, n);
            put(c + i * ldc + j, x, n);
        }
}

// c (M, N) = a (M, K) b + base, for b (K, N) in panels. Rows of a, base and c begin lda, base_stride
// and ldc elements apart. `base` may be c itself, which adds to it, one row for all (base_stride 0),
// or NULL.
static void product(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const REAL* a, ptrdiff_t lda,
    const REAL* panels, const REAL* base, ptrdiff_t base_stride, REAL* c, ptrdiff_t ldc) {
    ptrdiff_t k = 0;
    do {  // once for K = 0 too, which is c = base
        ptrdiff_t terms = least(K - k, PART);
        for (ptrdiff_t above = 0; above < M; above += ROW_BLOCK) {
            ptrdiff_t block = least(M - above, ROW_BLOCK);
            ptrdiff_t tiles = (block + TILE_ROWS - 1) / TILE_ROWS;
            for (ptrdiff_t j = 0; j < N; j += PANEL) {
                ptrdiff_t columns = least(N - j, PANEL), vectors = (columns + LANES - 1) / LANES;
                const REAL* panel = panels + K * j + k * vectors * LANES;
                for (ptrdiff_t t = 0; t < tiles; t++) {  // of about even heights
                    ptrdiff_t top = block * t / tiles, rows = block * (t + 1) / tiles - top;
                    ptrdiff_t i = above + top;
                    tile_function* whole = TILES[vectors - 1][rows - 1];
                    const REAL *from = a + i * lda + k,
                               *plus = base ? base + i * base_stride + j : 0;
                    REAL* to = c + i * ldc + j;
                    if (columns == vectors * LANES)
                        whole(terms, from, lda, panel, plus, base_stride, to, ldc);
                    else
                        ragged_tile(whole, rows, columns, terms, from, lda, panel, plus,
                            base_stride, to, ldc);
                }
            }
        }
        k += terms, base = c, base_stride = ldc;
    } while (k < K);
}
