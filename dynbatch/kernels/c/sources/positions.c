// Rotary positions: kernels/positions.py.
#include "shuffles.h"

// Rows first, …, last - 1, the first of which is in run k: each pair of features (a, b) of each head
// becomes (a cos - b sin, b cos + a sin). The table has `angles` cosines, then sines, for a position;
// `sign` is -1 to turn back. Pairs are neighbours, or half of `width` features apart; features beyond
// `width` stay.
EXPORT void rotary(ptrdiff_t first, ptrdiff_t last, ptrdiff_t k, const int64_t* offsets,
    const int64_t* starts, const REAL* table, ptrdiff_t angles, double sign, const REAL* x,
    ptrdiff_t x_row, ptrdiff_t heads, ptrdiff_t features, ptrdiff_t width, int is_interleaved,
    REAL* out, ptrdiff_t out_row) {
    const ptrdiff_t half = width / 2;
    const vector signs = splat((REAL)sign), alternating = first_halves(-signs, signs);
    for (ptrdiff_t row = first; row < last; row++) {
        while (offsets[k + 1] <= row) k++;
        const REAL* cosines = table + 2 * angles * (starts[k] + row - offsets[k]);
        const REAL* sines = cosines + angles;
        for (ptrdiff_t head = 0; head < heads; head++) {
            const REAL* from = x + row * x_row + head * features;
            REAL* to = out + row * out_row + head * features;
            if (is_interleaved) {
                EACH_VECTOR(i, n, width) {
                    vector pairs = get(from + i, n);
                    vector c = get(cosines + i / 2, n / 2), s = get(sines + i / 2, n / 2);
                    vector turned = swapped(pairs) * (first_halves(s, s) * alternating);
                    put(to + i, pairs * first_halves(c, c) + turned, n);
                }
            } else {
                EACH_VECTOR(i, n, half) {
                    vector a = get(from + i, n), b = get(from + half + i, n);
                    vector c = get(cosines + i, n), s = get(sines + i, n) * signs;
                    put(to + i, a * c - b * s, n);
                    put(to + half + i, b * c + a * s, n);
                }
            }
            if (from != to) EACH_VECTOR(i, n, features - width)
            put(to + width + i, get(from + width + i, n), n);
        }
    }
}
