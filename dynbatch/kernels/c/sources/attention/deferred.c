// Gradients of keys and values from the steps of a scan, summed at its end.
#include "attention/rows.h"

// A tile of `rows` keys and `vectors` vectors of columns of `step_products`, from `place` on.
INLINE void tile(ptrdiff_t begun, ptrdiff_t steps, const REAL* const* weights, const REAL* const* x,
    ptrdiff_t key, ptrdiff_t column, ptrdiff_t part, ptrdiff_t rows, ptrdiff_t vectors,
    ptrdiff_t place, ptrdiff_t width, REAL* out, REAL* before) {
    vector sums[4][4] = {{{0}}};
    if (before) {
        UNROLLED for (ptrdiff_t j = 0; j < rows; j++) {
            const REAL* from = before + place + j * width;
            UNROLLED for (ptrdiff_t c = 0; c < vectors; c++) sums[j][c] =
                get(from + c * LANES, part);
        }
    }
    for (ptrdiff_t t = begun; t < steps; t++) {
        const REAL *w = weights[t] + key, *row = x[t] + column;
        UNROLLED for (ptrdiff_t c = 0; c < vectors; c++) {
            vector of_step = get(row + c * LANES, part);
            UNROLLED for (ptrdiff_t j = 0; j < rows; j++) sums[j][c] += w[j] * of_step;
        }
    }
    UNROLLED for (ptrdiff_t j = 0; j < rows; j++) UNROLLED for (ptrdiff_t c = 0; c < vectors; c++) {
        REAL* to = (out ? out : before) + place + j * width + c * LANES;
        put(to, out ? get(to, part) + sums[j][c] : sums[j][c], part);
    }
}

// out_j += before_j + sum over steps t of weights_tj x_t, for the keys j of each sentence s, x_t its
// row. Step t has the first counts_t sentences; no step has fewer than the one before. The terms are
// added to before_j, zeros if NULL, one by one, so that the bits are those of one call for all steps
// where `out` is NULL, which leaves the sums in `before`, and another call goes on from these.
EXPORT void step_products(ptrdiff_t first, ptrdiff_t last, const int64_t* key_offsets,
    ptrdiff_t steps, const int64_t* counts, const void* weights, const void* rows, ptrdiff_t width,
    REAL* out, REAL* before) {
    const REAL *const *w = weights, *const *x = rows;
    ptrdiff_t begun = 0;
    for (ptrdiff_t s = first; s < last; s++) {
        while (begun < steps && counts[begun] <= s) begun++;
        ptrdiff_t end = key_offsets[s + 1];
        for (ptrdiff_t i = 0; i < width;) {
            int is_wide = i + WIDE <= width;
            ptrdiff_t part = least(width - i, LANES), column = s * width + i, j = key_offsets[s];
            for (; is_wide && j + 4 <= end; j += 4)
                tile(begun, steps, w, x, j, column, LANES, 4, 4, j * width + i, width, out, before);
            for (; j < end; j++) {
                ptrdiff_t at = j * width + i;
                if (is_wide)
                    tile(begun, steps, w, x, j, column, LANES, 1, 4, at, width, out, before);
                else tile(begun, steps, w, x, j, column, part, 1, 1, at, width, out, before);
            }
            i += is_wide ? WIDE : LANES;
        }
    }
}
