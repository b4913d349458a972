// Reductions of segments of packed rows, and back; see kernels/segment.py.
#include "elementwise.h"

enum { COLUMNS = 4 };  // vectors of columns that are reduced together

typedef vector Combine(vector a, vector b);

// Neighbouring elements: a few from the first to the last; of many, each lane takes every LANES-th,
// then the lanes are combined.
INLINE REAL reduced(Combine* combine, ptrdiff_t count, const REAL* x, REAL identity) {
    vector all = splat(identity);
    if (count <= LANES) {
        for (ptrdiff_t i = 0; i < count; i++) all = combine(all, splat(x[i]));
        return all[0];
    }
    EACH_VECTOR(i, n, count) all = combine(all, fill(get(x + i, n), n, identity));
    REAL parts[2 * VECTOR_BYTES / sizeof(REAL)] = {0};
    for (ptrdiff_t half = LANES / 2; half; half /= 2) {
        store(parts, all);
        all = combine(all, load(parts + half));
    }
    return all[0];
}

// out[k] = rows[offsets[k]] o ... o rows[offsets[k + 1] - 1] of segments first to last, `empty`
// where there is none. Each column is combined from the first row to the last.
INLINE void reduce(Combine* combine, ptrdiff_t first, ptrdiff_t last, ptrdiff_t width,
    const int64_t* offsets, const REAL* rows, REAL* out, REAL empty, REAL identity) {
    for (ptrdiff_t k = first; k < last; k++) {
        const REAL *from = rows + offsets[k] * width, *end = rows + offsets[k + 1] * width;
        REAL* to = out + k * width;
        if (from == end) {
            EACH_VECTOR(i, n, width) put(to + i, splat(empty), n);
        } else if (width == 1) {
            *to = reduced(combine, end - from, from, identity);
        } else {
            for (ptrdiff_t c = 0; c < width; c += COLUMNS * LANES) {
                ptrdiff_t columns = least(width - c, COLUMNS * LANES);
                vector all[COLUMNS];
                EACH_VECTOR(i, n, columns) all[i / LANES] = get(from + c + i, n);
                for (const REAL* row = from + width; row < end; row += width)
                    EACH_VECTOR(i, n, columns)
                all[i / LANES] = combine(all[i / LANES], get(row + c + i, n));
                EACH_VECTOR(i, n, columns) put(to + c + i, all[i / LANES], n);
            }
        }
    }
}

EXPORT void add(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const int64_t* offsets,
    const REAL* rows, REAL* out, double empty) {
    reduce(add_of, first, last, width, offsets, rows, out, (REAL)empty, 0);
}
EXPORT void maximum(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const int64_t* offsets,
    const REAL* rows, REAL* out, double empty) {
    reduce(maximum_of, first, last, width, offsets, rows, out, (REAL)empty, -INFINITY);
}
EXPORT void minimum(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const int64_t* offsets,
    const REAL* rows, REAL* out, double empty) {
    reduce(minimum_of, first, last, width, offsets, rows, out, (REAL)empty, INFINITY);
}

// out[n] = rows[n] o values[k] for every row n of segments k, first to last.
INLINE void combine_rows(Combine* combine, ptrdiff_t first, ptrdiff_t last, ptrdiff_t width,
    const int64_t* offsets, const REAL* rows, const REAL* values, REAL* out) {
    for (ptrdiff_t k = first; k < last; k++) {
        ptrdiff_t start = offsets[k] * width, size = offsets[k + 1] * width - start;
        if (width == 1) {
            vector value = splat(values[k]);
            EACH_VECTOR(i, n, size)
            put(out + start + i, combine(get(rows + start + i, n), value), n);
        } else {
            for (ptrdiff_t row = start; row < start + size; row += width) EACH_VECTOR(i, n, width)
            put(out + row + i, combine(get(rows + row + i, n), get(values + k * width + i, n)), n);
        }
    }
}

INLINE vector second(vector a, vector b) { return b; }

EXPORT void spread_segments(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width,
    const int64_t* offsets, const REAL* values, REAL* out) {
    combine_rows(second, first, last, width, offsets, out, values, out);
}
EXPORT void subtract(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const int64_t* offsets,
    const REAL* rows, const REAL* values, REAL* out) {
    combine_rows(subtract_of, first, last, width, offsets, rows, values, out);
}
EXPORT void multiply(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const int64_t* offsets,
    const REAL* rows, const REAL* values, REAL* out) {
    combine_rows(multiply_of, first, last, width, offsets, rows, values, out);
}

// out[k, d] = the first row of segment k, counted from its own first, whose element in column d is
// values[k, d]; NaN matches NaN.
EXPORT void first_in_segments(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width,
    const int64_t* offsets, const REAL* rows, const REAL* values, whole* out) {
    for (ptrdiff_t k = first; k < last; k++) {
        const REAL* from = rows + offsets[k] * width;
        EACH_VECTOR(c, n, width) {
            vector value = get(values + k * width + c, n);
            mask found = {0};
            // Backward, so that the first row is the last to be found.
            for (ptrdiff_t row = offsets[k + 1] - offsets[k]; row-- > 0;) {
                vector x = get(from + row * width + c, n);
                mask is = (x == value) | ((x != x) & (value != value));
                found = (is & ((mask){0} + (whole)row)) | (~is & found);
            }
            put((REAL*)out + k * width + c, (vector)found, n);
        }
    }
}
