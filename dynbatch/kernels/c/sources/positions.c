// Rotary positions: kernels/positions.py.
#include "shuffles.h"

// Each pair of features (a, b) of each head of rows first, …, last - 1 becomes (a cos - b sin,
// b cos + a sin). `turns` has `angles` cosines, then sines, for a position; `sign` is -1 to turn
// back. Pairs are neighbours, or half of `turned` features apart; features beyond `turned` stay.
EXPORT void rotary(ptrdiff_t first, ptrdiff_t last, const REAL* x, ptrdiff_t x_stride, REAL* out,
    ptrdiff_t out_stride, const int64_t* offsets, const int64_t* starts, const REAL* turns,
    ptrdiff_t angles, double sign, ptrdiff_t heads, ptrdiff_t features, ptrdiff_t turned,
    int is_interleaved) {
    ptrdiff_t k = 0;
    const ptrdiff_t half = turned / 2;
    const vector signs = splat((REAL)sign), alternating = first_halves(-signs, signs);
    for (ptrdiff_t row = first; row < last; row++) {
        while (offsets[k + 1] <= row) k++;
        const REAL* cosines = turns + 2 * angles * (starts[k] + row - offsets[k]);
        const REAL* sines = cosines + angles;
        for (ptrdiff_t head = 0; head < heads; head++) {
            const REAL* from = x + row * x_stride + head * features;
            REAL* to = out + row * out_stride + head * features;
            if (is_interleaved) {
                EACH_VECTOR(i, n, turned) {
                    vector pairs = get(from + i, n);
                    vector c = get(cosines + i / 2, n / 2), s = get(sines + i / 2, n / 2);
                    vector rotated = swapped(pairs) * (first_halves(s, s) * alternating);
                    put(to + i, pairs * first_halves(c, c) + rotated, n);
                }
            } else {
                EACH_VECTOR(i, n, half) {
                    vector a = get(from + i, n), b = get(from + half + i, n);
                    vector c = get(cosines + i, n), s = get(sines + i, n) * signs;
                    put(to + i, a * c - b * s, n);
                    put(to + half + i, b * c + a * s, n);
                }
            }
            if (from != to) EACH_VECTOR(i, n, features - turned)
            put(to + turned + i, get(from + turned + i, n), n);
        }
    }
}
