// Products of matrices, and one product for each segment.
#include "few_rows.h"

// c = a b + base. Elements of a, b and c lie the given numbers of elements apart, as do rows of
// `base`; NULL is zero. Those of a and b are numbers or their upper halves.
EXPORT void products(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const void* a, int a_is_short,
    ptrdiff_t a_row, ptrdiff_t a_term, const void* b, int b_is_short, ptrdiff_t b_term,
    ptrdiff_t b_column, const REAL* base, ptrdiff_t base_stride, REAL* c, ptrdiff_t ldc) {
    ptrdiff_t done = 0;
    if (a_term == 1 && b_term == 1 && b_column != 1 && M <= MOST_TURNED)
        done = turned_product(
            M, K, N, a, a_is_short, a_row, b, b_is_short, b_column, base, base_stride, c, ldc);
    if (done < N)
        unpacked_product(M, K, N - done, a, a_is_short, a_row, a_term,
            element(b, done * b_column, b_is_short), b_is_short, b_term, b_column,
            base ? base + done : NULL, base_stride, c + done, ldc);
}

// For each segment, a row of `table`: where its a, b and c begin, and M, K, N. Each lies packed; a
// and b are read transposed on request.
EXPORT void segments(ptrdiff_t first, ptrdiff_t last, const int64_t* table, int transpose_a,
    int transpose_b, const REAL* a, const REAL* b, REAL* c) {
    for (const int64_t* row = table + 6 * first; row < table + 6 * last; row += 6) {
        ptrdiff_t M = row[3], K = row[4], N = row[5];
        unpacked_product(M, K, N, a + row[0], 0, transpose_a ? 1 : K, transpose_a ? M : 1,
            b + row[1], 0, transpose_b ? 1 : N, transpose_b ? K : 1, NULL, 0, c + row[2], N);
    }
}

// For the loops of cells, which pack their weights once a run:

// Pack a weight (N, K), whose rows lie `stride` apart, transposed.
EXPORT void pack_weight(
    ptrdiff_t K, ptrdiff_t N, const REAL* weight, ptrdiff_t stride, REAL* panels) {
    pack_panels(0, (N + PANEL - 1) / PANEL, K, N, weight, 0, 1, stride, panels);
}

// Pack rows of a weight (K, N), whose rows lie `stride` apart, as terms `first` to `first` + K - 1 of
// panels of `terms` terms.
EXPORT void pack_terms(ptrdiff_t terms, ptrdiff_t first, ptrdiff_t K, ptrdiff_t N,
    const REAL* weight, ptrdiff_t stride, REAL* panels) {
    for (ptrdiff_t j = 0; j < N; j += PANEL) {
        ptrdiff_t columns = least(N - j, PANEL);
        pack_rows(terms, first, K, columns, weight + j, 0, stride, panels + WORDS(terms) * j);
    }
}

// Pack a weight (K, N) of upper halves, whose elements lie `term` and `column` apart.
EXPORT void pack_short(ptrdiff_t K, ptrdiff_t N, const uint16_t* weight, ptrdiff_t term,
    ptrdiff_t column, REAL* panels) {
    pack_panels(0, (N + PANEL - 1) / PANEL, K, N, weight, 1, term, column, panels);
}

EXPORT void panel_product(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const REAL* a, ptrdiff_t lda,
    const REAL* panels, const REAL* base, ptrdiff_t base_stride, REAL* c, ptrdiff_t ldc) {
    // A few rows wait for the panels: they read each from end to end, not part by part.
    ptrdiff_t some = M <= TILE_ROWS && K > PART ? PANEL : most(N, 1);
    for (ptrdiff_t j = 0; j < N; j += some)
        product(M, K, least(N - j, some), a, lda, panels + WORDS(K) * j, base ? base + j : NULL,
            base_stride, c + j, ldc);
}

// Whether an instruction multiplies words of several terms.
EXPORT void find_instruction(int64_t* is_there) {
#ifdef BY_INSTRUCTION
    *is_there = 1;
#else
    *is_there = 0;
#endif
}
