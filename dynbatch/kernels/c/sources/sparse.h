// Products of rows that are mostly zeros, such as the gradient of a maximum over many rows.
//
// They have the bits of product.h's, where a zero times a finite number adds nothing to a sum: only
// what is not zero is multiplied.
#include "product.h"

// One of so many terms may be another number than zero: then a sum of these alone is quicker.
#define SPARSE 8

// Whether of a (rows, columns) so few are not zero. Rounded factors are left to `product`.
static int is_sparse(ptrdiff_t rows, ptrdiff_t columns, const REAL* a, ptrdiff_t a_row) {
#ifdef FACTOR_BITS
    return 0;
#endif
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < rows; i++, a += a_row) {
        mask others = {0};
        EACH_VECTOR(j, n, columns) others -= (mask)(get(a + j, n) != (vector){0});
        for (int lane = 0; lane < LANES; lane++) count += others[lane];
    }
    return SPARSE * count < rows * columns;
}

static int are_finite(ptrdiff_t rows, ptrdiff_t columns, const REAL* b, ptrdiff_t b_row) {
    vector zero = {0};
    for (ptrdiff_t i = 0; i < rows; i++, b += b_row) EACH_VECTOR(j, n, columns) {
            vector x = get(b + j, n);
            zero += x - x;
        }
    for (int lane = 0; lane < LANES; lane++)
        if (zero[lane] != 0) return 0;
    return 1;
}

// One row by at most PANEL columns of b: the terms numbered `terms`, which have the values `values`.
INLINE void sum_terms(ptrdiff_t count, const int32_t* terms, const REAL* values, ptrdiff_t columns,
    const REAL* b, ptrdiff_t step, const REAL* base, REAL* c) {
    vector sum[PANEL_VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < PANEL_VECTORS; j++) sum[j] = (vector){0};
    if (columns == PANEL) {
        for (ptrdiff_t k = 0; k < count; k++) {
            const REAL* row = b + terms[k] * step;
            vector x = splat(values[k]);
#pragma GCC unroll 8
            for (int j = 0; j < PANEL_VECTORS; j++)
                sum[j] = multiply_add(x, load(row + j * LANES), sum[j]);
        }
    } else {
        for (ptrdiff_t k = 0; k < count; k++) {
            const REAL* row = b + terms[k] * step;
            vector x = splat(values[k]);
            EACH_VECTOR(j, n, columns)
            sum[j / LANES] = multiply_add(x, get(row + j, n), sum[j / LANES]);
        }
    }
    EACH_VECTOR(j, n, columns) {
        vector total = sum[j / LANES];
        put(c + j, base ? total + get(base + j, n) : total, n);
    }
}

// c (M, N) = a b + base over at most PART terms. Elements of a lie `a_row` and `a_term` apart; rows
// of b lie `b_row` apart, or it lies in panels if that is 0.
static void sparse_product(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const REAL* a, ptrdiff_t a_row,
    ptrdiff_t a_term, const REAL* b, ptrdiff_t b_row, const REAL* base, ptrdiff_t base_stride,
    REAL* c, ptrdiff_t ldc) {
    int32_t terms[PART + 1];
    REAL values[PART + 1];
    for (ptrdiff_t i = 0; i < M; i++) {
        ptrdiff_t count = 0;
        for (ptrdiff_t k = 0; k < K; k++) {
            REAL value = a[i * a_row + k * a_term];
            terms[count] = (int32_t)k, values[count] = value;
            count += value != 0;
        }
        for (ptrdiff_t j = 0; j < N; j += PANEL) {
            ptrdiff_t columns = least(N - j, PANEL), width = (columns + LANES - 1) & -LANES;
            sum_terms(count, terms, values, columns, b_row ? b + j : b + K * j,
                b_row ? b_row : width, base ? base + i * base_stride + j : NULL, c + i * ldc + j);
        }
    }
}
