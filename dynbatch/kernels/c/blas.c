// Products of matrices and of planes of matrices, and one product for each segment.
#include "product.h"

// c_p = a_p b_p + base for each of P planes; if c_plane is 0, their sum. Elements of a, b and c lie
// the given numbers of elements apart, as do rows of `base`; NULL is zero.
EXPORT void products(ptrdiff_t P, ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const REAL* a,
    ptrdiff_t a_plane, ptrdiff_t a_row, ptrdiff_t a_term, const REAL* b, ptrdiff_t b_plane,
    ptrdiff_t b_term, ptrdiff_t b_column, const REAL* base, ptrdiff_t base_stride, REAL* c,
    ptrdiff_t c_plane, ptrdiff_t ldc) {
    for (ptrdiff_t p = 0; p < P; p++, a += a_plane, b += b_plane, c += c_plane) {
        int adds = p && !c_plane;
        unpacked_product(M, K, N, a, a_row, a_term, b, b_term, b_column, adds ? c : base,
            adds ? ldc : base_stride, c, ldc);
    }
}

// For each segment, a row of `table`: where its a, b and c begin, and M, K, N. Each lies packed; a
// and b are read transposed on request.
EXPORT void segments(ptrdiff_t first, ptrdiff_t last, const int64_t* table, int transpose_a,
    int transpose_b, const REAL* a, const REAL* b, REAL* c) {
    for (const int64_t* row = table + 6 * first; row < table + 6 * last; row += 6) {
        ptrdiff_t M = row[3], K = row[4], N = row[5];
        unpacked_product(M, K, N, a + row[0], transpose_a ? 1 : K, transpose_a ? M : 1, b + row[1],
            transpose_b ? 1 : N, transpose_b ? K : 1, NULL, 0, c + row[2], N);
    }
}
