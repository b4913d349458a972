// Attention of one query row a sentence by dot products.
#include "attention/steps.h"

// p_j = softmax of scale_s q . k_j over the keys j of sentence s, from starts_s to ends_s, for its
// query q in row queries_s;  out = sum of p_j v_j. The logarithms of the sums of exp(score) go to
// log_sums unless that is NULL. All sentences have the first scale if there is one alone.
EXPORT void dot(ptrdiff_t first, ptrdiff_t last, const int64_t* queries, const int64_t* starts,
    const int64_t* ends, ptrdiff_t width, ptrdiff_t value_width, const REAL* q, ptrdiff_t q_stride,
    const REAL* keys, const REAL* values, const REAL* scales, int one_scale, REAL* p, REAL* out,
    ptrdiff_t out_stride, REAL* log_sums) {
    for (ptrdiff_t s = first; s < last; s++) {
        ptrdiff_t row = queries[s], start = starts[s], n = ends[s] - start;
        REAL scale = scales[one_scale ? 0 : s];
        dot_rows(n, width, keys + start * width, q + row * q_stride, scale, p + start);
        REAL log_sum = softmax_row(n, p + start);
        if (log_sums) log_sums[row] = log_sum;
        sum_rows(n, value_width, p + start, values + start * value_width, out + row * out_stride);
    }
}

// Gradients of `dot`, with p_j = exp(score_j - log_sum), made again unless log_sums is NULL, and
// ds_j = scale p_j (dout . v_j - sum of p_i dout . v_i): dq = sum of ds_j k_j, dk_j += ds_j q,
// dv_j += p_j dout. Any of the three may be NULL; unless `adds`, dk and dv are overwritten.
EXPORT void dot_backward(ptrdiff_t first, ptrdiff_t last, const int64_t* queries,
    const int64_t* starts, const int64_t* ends, ptrdiff_t width, ptrdiff_t value_width,
    const REAL* q, ptrdiff_t q_stride, const REAL* keys, const REAL* values, const REAL* scales,
    int one_scale, const REAL* log_sums, const REAL* dout, ptrdiff_t dout_stride, int adds, REAL* p,
    REAL* ds, REAL* dq, ptrdiff_t dq_stride, REAL* dk, REAL* dv) {
    for (ptrdiff_t s = first; s < last; s++) {
        ptrdiff_t row = queries[s], start = starts[s], n = ends[s] - start;
        const REAL *query = q + row * q_stride, *dy = dout + row * dout_stride;
        REAL *w = p + start, *d = ds + start, scale = scales[one_scale ? 0 : s];
        if (log_sums) {
            dot_rows(n, width, keys + start * width, query, scale, w);
            EACH_VECTOR(j, part, n) put(w + j, exp_of(get(w + j, part) - log_sums[row]), part);
        }
        dot_rows(n, value_width, values + start * value_width, dy, 1, d);
        softmax_row_backward(n, w, d);
        EACH_VECTOR(j, part, n) put(d + j, scale * get(d + j, part), part);
        if (dq) sum_rows(n, width, d, keys + start * width, dq + row * dq_stride);
        if (dk) outer_rows(n, width, d, query, adds, dk + start * width);
        if (dv) outer_rows(n, value_width, w, dy, adds, dv + start * value_width);
    }
}

// The step of a scan, forward and backward: one query row x of each of the first n sentences.
EXPORT void dot_step(const void* shared, ptrdiff_t t, ptrdiff_t n, const REAL* x,
    ptrdiff_t x_stride, REAL* out, ptrdiff_t out_stride) {
    const shared_by_steps* of = shared;
    dot(0, n, of->queries, of->offsets, of->offsets + 1, of->width, of->value_width, x, x_stride,
        of->keys, of->values, of->scorer, 1, of->weights + of->pairs[t], out, out_stride, NULL);
}

EXPORT void dot_step_backward(const void* shared, ptrdiff_t t, ptrdiff_t n, const REAL* dy,
    ptrdiff_t dy_stride, const REAL* x, ptrdiff_t x_stride, REAL* dx, ptrdiff_t dx_stride) {
    const shared_by_steps* of = shared;
    dot_backward(0, n, of->queries, of->offsets, of->offsets + 1, of->width, of->value_width, x,
        x_stride, of->keys, of->values, of->scorer, 1, NULL, dy, dy_stride, 1,
        of->weights + of->pairs[t], of->slopes + of->pairs[t], dx, dx_stride, NULL, NULL);
    if (of->seen) copy_rows(n, of->width, x, x_stride, of->seen + of->rows[t] * of->width);
    if (of->gradients)
        copy_rows(n, of->value_width, dy, dy_stride, of->gradients + of->rows[t] * of->value_width);
}
