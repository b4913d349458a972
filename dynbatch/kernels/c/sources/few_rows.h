// Products of few rows with a matrix whose columns are rows in memory: of one token with weights.
//
// Sums are in the order of product.h, and have its bits.
#include "product.h"

// Few rows by a b whose columns are rows in memory, `b_column` apart: weights (N, K). Each is read
// once, in order, and turned in registers, LANES columns and terms at a time.
#define TURNED_ROWS 8
#define MOST_TURNED 16
#define TURNED_ARGUMENTS                                                          \
    ptrdiff_t K, const REAL *a, ptrdiff_t a_row, ptrdiff_t a_term, const REAL *b, \
        ptrdiff_t b_column, const REAL *base, ptrdiff_t base_stride, REAL *c, ptrdiff_t ldc

INLINE void turned_tile(const int rows, TURNED_ARGUMENTS) {
    ptrdiff_t k = 0;
    do {
        ptrdiff_t end = least(K, k + PART);
        vector sum[TURNED_ROWS];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) sum[i] = (vector){0};
        for (; k < end; k += LANES) {
            vector x[LANE_COUNT];
            ptrdiff_t terms = least(LANES, end - k);
            if (terms == LANES) {
#pragma GCC unroll 16
                for (int s = 0; s < LANE_COUNT; s++) {
                    const REAL* from = b + s * b_column + k;
                    x[s] = load(from);
                    __builtin_prefetch(from + LANES * b_column, 0, 2);  // of the next columns
                }
            } else {
                for (int s = 0; s < LANE_COUNT; s++) x[s] = get(b + s * b_column + k, terms);
            }
            transpose(x);
            const REAL* at = a + k * a_term;
            if (terms == LANES) {
#pragma GCC unroll 16
                for (int s = 0; s < LANE_COUNT; s++)
#pragma GCC unroll 8
                    for (int i = 0; i < rows; i++)
                        sum[i] = multiply_add(splat(at[i * a_row + s * a_term]), x[s], sum[i]);
            } else {
                for (ptrdiff_t s = 0; s < terms; s++)
#pragma GCC unroll 8
                    for (int i = 0; i < rows; i++)
                        sum[i] = multiply_add(splat(at[i * a_row + s * a_term]), x[s], sum[i]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            if (base) sum[i] += load(base + i * base_stride);
            store(c + i * ldc, sum[i]);
        }
        k = end, base = c, base_stride = ldc;
    } while (k < K);
}

typedef void turned_function(TURNED_ARGUMENTS);
#define TURNED(rows)                                                                    \
    static __attribute__((noinline)) void turned_##rows(TURNED_ARGUMENTS) {             \
        turned_tile(rows, K, a, a_row, a_term, b, b_column, base, base_stride, c, ldc); \
    }
TURNED(1)
TURNED(2)
TURNED(4)
TURNED(8)

// The whole vectors of columns of such a product. Returns how many columns these are.
static ptrdiff_t turned_product(ptrdiff_t M, ptrdiff_t N, TURNED_ARGUMENTS) {
    ptrdiff_t j = 0;
    for (; j + LANES <= N; j += LANES)
        for (ptrdiff_t i = 0, rows; i < M; i += rows) {
            rows = M - i >= 8 ? 8 : M - i >= 4 ? 4 : M - i >= 2 ? 2 : 1;
            turned_function* turned = rows == 8   ? turned_8
                                      : rows == 4 ? turned_4
                                      : rows == 2 ? turned_2
                                                  : turned_1;
            turned(K, a + i * a_row, a_row, a_term, b + j * b_column, b_column,
                base ? base + i * base_stride + j : NULL, base_stride, c + i * ldc + j, ldc);
        }
    return j;
}
