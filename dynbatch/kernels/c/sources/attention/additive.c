// Additive attention of each sentence's queries over its own keys.
#include "attention/steps.h"

// Which keys a sentence's queries see: query i sees key j if i - left <= j <= i + right, and
// visible[i * stride + j] where there is such a table.
typedef struct {
    int64_t left, right;
    const uint8_t* visible;
    int64_t stride;
} seen;

// vec . tanh(q + k)
static REAL score(ptrdiff_t width, const REAL* vec, const REAL* q, const REAL* k) {
    vector sums = {0};
    EACH_VECTOR(i, part, width)
    sums += get(vec + i, part) * tanh_of(get(q + i, part) + get(k + i, part));
    return sum_lanes(sums);
}

static void hide(ptrdiff_t query, ptrdiff_t n, const seen* mask, REAL* w) {
    for (ptrdiff_t j = 0; j < n; j++) {
        int hidden = j < query - mask->left || j > query + mask->right;
        if (hidden || (mask->visible && !mask->visible[query * mask->stride + j])) w[j] = -INFINITY;
    }
}

// w_ij = softmax over j of vec . tanh(q_i + k_j);  out_i = sum of w_ij v_j. A query that sees no key
// has weights of 0.
EXPORT void additive(ptrdiff_t first, ptrdiff_t last, const int64_t* query_offsets,
    const int64_t* key_offsets, const int64_t* pair_offsets, const void* masks, ptrdiff_t width,
    ptrdiff_t value_width, const REAL* vec, const REAL* q, ptrdiff_t q_stride, const REAL* keys,
    const REAL* values, REAL* weights, REAL* out, ptrdiff_t out_stride) {
    for (ptrdiff_t s = first; s < last; s++) {
        ptrdiff_t start = key_offsets[s], n = key_offsets[s + 1] - start, begin = query_offsets[s];
        REAL* w = weights + pair_offsets[s];
        for (ptrdiff_t i = begin; i < query_offsets[s + 1]; i++, w += n) {
            const REAL* k = keys + start * width;
            for (ptrdiff_t j = 0; j < n; j++, k += width)
                w[j] = score(width, vec, q + i * q_stride, k);
            if (masks) hide(i - begin, n, (const seen*)masks + s, w);
            softmax_row(n, w);
            sum_rows(n, value_width, w, values + start * value_width, out + i * out_stride);
        }
    }
}

// With u = tanh(q + k_j): dq = vec * sum of ds_j (1 - u^2), dk_j += ds_j vec (1 - u^2),
// dvec += sum of ds_j u. dq and dk may be NULL.
INLINE void scores_backward(ptrdiff_t n, ptrdiff_t width, ptrdiff_t part, int vectors,
    const REAL* vec, const REAL* q, const REAL* k, const REAL* ds, REAL* dq, REAL* dk, REAL* dvec) {
    vector query[4], by[4], slopes[4], turns[4];
    UNROLLED for (int c = 0; c < vectors; c++) {
        query[c] = get(q + c * LANES, part);
        by[c] = get(vec + c * LANES, part);
        slopes[c] = turns[c] = splat(0);
    }
    for (ptrdiff_t j = 0; j < n; j++, k += width) {
        UNROLLED for (int c = 0; c < vectors; c++) {
            vector u = tanh_of(query[c] + get(k + c * LANES, part));
            vector slope = ds[j] * (1 - u * u);
            turns[c] += ds[j] * u;
            slopes[c] += slope;
            if (dk) {
                REAL* to = dk + j * width + c * LANES;
                put(to, get(to, part) + slope * by[c], part);
            }
        }
    }
    UNROLLED for (int c = 0; c < vectors; c++) {
        REAL* to = dvec + c * LANES;
        put(to, get(to, part) + turns[c], part);
        if (dq) put(dq + c * LANES, slopes[c] * by[c], part);
    }
}

static void clear(REAL* array, ptrdiff_t n) { memset(array, 0, (size_t)n * sizeof(REAL)); }
static REAL* at(REAL* array, ptrdiff_t index) { return array ? array + index : array; }

// Gradients of `additive`: with dw_ij = dout_i . v_j and ds_ij = w_ij (dw_ij - sum of w_ij dw_ij),
// dv_j += sum of w_ij dout_i, and those of the scores. The sentences are cut into `blocks` parts,
// each with a row of scratch and a row of dvec, to which it adds; dq, dk and dv may be NULL. Unless
// `adds`, dk and dv are overwritten.
EXPORT void additive_backward(ptrdiff_t first, ptrdiff_t last, ptrdiff_t blocks, ptrdiff_t count,
    const int64_t* query_offsets, const int64_t* key_offsets, const int64_t* pair_offsets,
    ptrdiff_t width, ptrdiff_t value_width, const REAL* vec, const REAL* q, ptrdiff_t q_stride,
    const REAL* keys, const REAL* values, const REAL* weights, const REAL* dout,
    ptrdiff_t dout_stride, int adds, REAL* dq, ptrdiff_t dq_stride, REAL* dk, REAL* dv,
    REAL* scratch, ptrdiff_t scratch_stride, REAL* dvec) {
    for (ptrdiff_t b = first; b < last; b++) {
        REAL *ds = scratch + b * scratch_stride, *turn = dvec + b * width;
        for (ptrdiff_t s = count * b / blocks; s < count * (b + 1) / blocks; s++) {
            ptrdiff_t start = key_offsets[s], n = key_offsets[s + 1] - start;
            const REAL* w = weights + pair_offsets[s];
            if (dk && !adds) clear(dk + start * width, n * width);
            if (dv && !adds) clear(dv + start * value_width, n * value_width);
            for (ptrdiff_t i = query_offsets[s]; i < query_offsets[s + 1]; i++, w += n) {
                const REAL *dy = dout + i * dout_stride, *row = q + i * q_stride;
                dot_rows(n, value_width, values + start * value_width, dy, 1, ds);
                softmax_row_backward(n, w, ds);
                if (dv) outer_rows(n, value_width, w, dy, 1, dv + start * value_width);
                REAL *to_q = at(dq, i * dq_stride), *to_k = at(dk, start * width);
                const REAL* k = keys + start * width;
                ptrdiff_t x = 0;
                for (; x + WIDE <= width; x += WIDE)
                    scores_backward(n, width, LANES, 4, vec + x, row + x, k + x, ds, at(to_q, x),
                        at(to_k, x), turn + x);
                for (; x < width; x += LANES)
                    scores_backward(n, width, least(width - x, LANES), 1, vec + x, row + x, k + x,
                        ds, at(to_q, x), at(to_k, x), turn + x);
            }
        }
    }
}

// The step of a scan, forward and backward: one query row x of each of the first n sentences.
EXPORT void additive_step(const void* shared, ptrdiff_t t, ptrdiff_t n, const REAL* x,
    ptrdiff_t x_stride, REAL* out, ptrdiff_t out_stride) {
    const shared_by_steps* of = shared;
    additive(0, n, of->queries, of->offsets, of->offsets, NULL, of->width, of->value_width,
        of->scorer, x, x_stride, of->keys, of->values, of->weights + of->pairs[t], out, out_stride);
}

EXPORT void additive_step_backward(const void* shared, ptrdiff_t t, ptrdiff_t n, const REAL* dy,
    ptrdiff_t dy_stride, const REAL* x, ptrdiff_t x_stride, REAL* dx, ptrdiff_t dx_stride) {
    const shared_by_steps* of = shared;
    additive_backward(0, 1, 1, n, of->queries, of->offsets, of->offsets, of->width, of->value_width,
        of->scorer, x, x_stride, of->keys, of->values, of->weights + of->pairs[t], dy, dy_stride, 1,
        dx, dx_stride, of->dkeys, NULL, of->scratch, 0, of->dvector);
    if (of->gradients)
        copy_rows(n, of->value_width, dy, dy_stride, of->gradients + of->rows[t] * of->value_width);
}
