// Layer normalisation and RMS normalisation of rows, a row at a time.
#include "common.h"

INLINE vector get_or(const REAL* p, ptrdiff_t i, ptrdiff_t n, REAL otherwise) {
    return p ? get(p + i, n) : splat(otherwise);
}

// out = (x - mean) rstd weight + bias, with rstd = 1 / sqrt(mean of (x - mean)^2 + eps). Without
// `mean` nothing is subtracted. kept = x.
EXPORT void layer_norm(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const REAL* x,
    ptrdiff_t x_stride, const REAL* weight, const REAL* bias, double eps, REAL* out,
    ptrdiff_t out_stride, REAL* mean, REAL* rstd, REAL* kept) {
    for (ptrdiff_t r = first; r < last; r++) {
        const REAL* from = x + r * x_stride;
        REAL* to = out + r * out_stride;
        REAL centre = 0;
        if (mean) {
            vector sums = {0};
            EACH_VECTOR(i, n, width) sums += get(from + i, n);
            mean[r] = centre = sum_lanes(sums) / (REAL)width;
        }
        vector squares = {0};
        EACH_VECTOR(i, n, width) {
            vector centred = fill(get(from + i, n) - centre, n, 0);
            squares += centred * centred;
        }
        REAL scale = 1 / (REAL)sqrt(sum_lanes(squares) / (REAL)width + (REAL)eps);
        rstd[r] = scale;
        EACH_VECTOR(i, n, width) {
            vector value = get(from + i, n);
            if (kept) put(kept + r * width + i, value, n);
            value = (value - centre) * scale;
            put(to + i, value * get_or(weight, i, n, 1) + get_or(bias, i, n, 0), n);
        }
    }
}

// What `layer_norm` multiplied by the weight, n = (rows - shift) factor; see `Normals` in Python.
// In the `lost` columns factor is 0, and n lies in `values`, a row of `count` for each of theirs.
typedef struct {
    const REAL* rows;
    ptrdiff_t stride;
    const REAL *shift, *factor;
    int of_rows;
    ptrdiff_t count;
    const int64_t* lost;
    const REAL* values;
} Normals;

INLINE vector along(
    const REAL* p, ptrdiff_t row, ptrdiff_t i, ptrdiff_t n, int of_rows, REAL otherwise) {
    return of_rows && p ? splat(p[row]) : get_or(p, i, n, otherwise);
}
// 0 in lost columns.
INLINE vector normal(const Normals* of, ptrdiff_t row, ptrdiff_t i, ptrdiff_t n) {
    vector x = get(of->rows + row * of->stride + i, n);
    vector factor = along(of->factor, row, i, n, of->of_rows, 1);
    x = (x - along(of->shift, row, i, n, of->of_rows, 0)) * factor;
    return of->count ? choose(factor == 0, (vector){0}, x) : x;
}

// out = rstd (g - mean(g) - n mean(g n)) with g = dy weight; not centred, mean(g) does not appear.
EXPORT void layer_norm_backward(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const REAL* rows,
    ptrdiff_t stride, const REAL* shift, const REAL* factor, int of_rows, ptrdiff_t count,
    const int64_t* lost, const REAL* values, const REAL* dy, ptrdiff_t dy_stride,
    const REAL* weight, const REAL* rstd, int centred, REAL* out, ptrdiff_t out_stride) {
    const Normals of = {rows, stride, shift, factor, of_rows, count, lost, values};
    for (ptrdiff_t r = first; r < last; r++) {
        const REAL *from = dy + r * dy_stride, *own = values + r * count;
        REAL* to = out + r * out_stride;
        vector sums = {0}, products = {0};
        EACH_VECTOR(i, n, width) {
            vector g = get(from + i, n) * get_or(weight, i, n, 1);
            sums += g;
            products += g * normal(&of, r, i, n);
        }
        REAL level = centred ? sum_lanes(sums) / (REAL)width : 0, product = sum_lanes(products);
        for (ptrdiff_t k = 0; k < count; k++)
            product += from[lost[k]] * (weight ? weight[lost[k]] : 1) * own[k];
        product /= (REAL)width;
        EACH_VECTOR(i, n, width) {
            vector g = get(from + i, n) * get_or(weight, i, n, 1);
            put(to + i, (g - level - normal(&of, r, i, n) * product) * rstd[r], n);
        }
        for (ptrdiff_t k = 0; k < count; k++) to[lost[k]] -= own[k] * product * rstd[r];
    }
}

// Adds dy n to dweight and dy to dbias, either of which may be NULL, in `vectors` vectors of columns
// from i on, of n elements each; of the first rows it sets them.
INLINE void add_columns(const int vectors, ptrdiff_t i, ptrdiff_t n, ptrdiff_t start, ptrdiff_t end,
    int is_first, const Normals* of, const REAL* dy, ptrdiff_t dy_stride, REAL* dweight,
    REAL* dbias) {
    vector of_weight[BESIDE] = {{0}}, of_bias[BESIDE] = {{0}};
    for (ptrdiff_t r = start; r < end; r++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            ptrdiff_t at = i + j * LANES;
            vector g = get(dy + r * dy_stride + at, n);
            if (dweight) of_weight[j] = multiply_add(g, normal(of, r, at, n), of_weight[j]);
            of_bias[j] += g;
        }
#pragma GCC unroll 8
    for (int j = 0; j < vectors; j++) {
        ptrdiff_t at = i + j * LANES;
        if (dweight)
            put(dweight + at, get_or(is_first ? NULL : dweight, at, n, 0) + of_weight[j], n);
        if (dbias) put(dbias + at, get_or(is_first ? NULL : dbias, at, n, 0) + of_bias[j], n);
    }
}

// dweight = sum of dy n and dbias = sum of dy over rows first ... last - 1, in order: TOGETHER rows at
// a time, whose sums are then added, which rounds less than one long sum.
EXPORT void sum_parameters(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const REAL* rows,
    ptrdiff_t stride, const REAL* shift, const REAL* factor, int of_rows, ptrdiff_t count,
    const int64_t* lost, const REAL* values, const REAL* dy, ptrdiff_t dy_stride, REAL* dweight,
    REAL* dbias) {
    const Normals of = {rows, stride, shift, factor, of_rows, count, lost, values};
    for (ptrdiff_t start = first; start < last; start += TOGETHER) {
        ptrdiff_t end = least(start + TOGETHER, last);
        ptrdiff_t i = 0;
        for (; width - i >= BESIDE * LANES; i += BESIDE * LANES)
            add_columns(
                BESIDE, i, LANES, start, end, start == first, &of, dy, dy_stride, dweight, dbias);
        for (; i < width; i += LANES)
            add_columns(1, i, least(width - i, LANES), start, end, start == first, &of, dy,
                dy_stride, dweight, dbias);
        for (ptrdiff_t k = 0; dweight && k < count; k++) {
            REAL sum = 0;
            for (ptrdiff_t r = start; r < end; r++)
                sum += dy[r * dy_stride + lost[k]] * values[r * count + k];
            dweight[lost[k]] += sum;
        }
    }
}

// out = the sum of `count` rows, `stride` apart, in order.
EXPORT void add_rows(
    ptrdiff_t count, ptrdiff_t stride, ptrdiff_t width, const REAL* rows, REAL* out) {
    EACH_VECTOR(i, n, width) {
        vector sum = count ? get(rows + i, n) : (vector){0};
        for (ptrdiff_t r = 1; r < count; r++) sum += get(rows + r * stride + i, n);
        put(out + i, sum, n);
    }
}

EXPORT void reciprocals(ptrdiff_t first, ptrdiff_t last, const REAL* x, REAL* out) {
    EACH_VECTOR(i, n, last - first) put(out + first + i, 1 / get(x + first + i, n), n);
}
