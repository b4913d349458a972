// Sums over all rows.
#include "common.h"

// out += sum of rows, in order, for `vectors` vectors of columns, of n elements each.
INLINE void add_columns(const int vectors, ptrdiff_t n, ptrdiff_t count, const REAL* rows,
    ptrdiff_t stride, REAL* out) {
    vector sums[BESIDE] = {{0}};
    for (ptrdiff_t r = 0; r < count; r++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) sums[j] += get(rows + r * stride + j * LANES, n);
#pragma GCC unroll 8
    for (int j = 0; j < vectors; j++) put(out + j * LANES, get(out + j * LANES, n) + sums[j], n);
}

// out = sum of rows, in order, for columns first ... last - 1: zeros of no rows. TOGETHER rows at a
// time, whose sums are then added, which rounds less than one long sum.
EXPORT void sum_rows(ptrdiff_t first, ptrdiff_t last, ptrdiff_t count, const REAL* rows,
    ptrdiff_t stride, REAL* out) {
    memset(out + first, 0, (size_t)(last - first) * sizeof(REAL));
    for (ptrdiff_t start = 0; start < count; start += TOGETHER) {
        ptrdiff_t end = least(start + TOGETHER, count), i = first;
        const REAL* from = rows + start * stride;
        for (; last - i >= BESIDE * LANES; i += BESIDE * LANES)
            add_columns(BESIDE, LANES, end - start, from + i, stride, out + i);
        for (; i < last; i += LANES)
            add_columns(1, least(last - i, LANES), end - start, from + i, stride, out + i);
    }
}
