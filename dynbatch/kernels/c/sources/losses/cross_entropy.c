// Softmax cross-entropy of logits, a row at a time while it is in the cache.
#include "functions.h"

// z + bias.
INLINE vector shifted(const REAL* z, const REAL* bias, ptrdiff_t i, ptrdiff_t n) {
    vector x = get(z + i, n);
    return bias ? x + get(bias + i, n) : x;
}
// (1 - smoothing) q + smoothing / classes; 0 beyond the row.
INLINE vector probability(
    const REAL* q, double smoothing, ptrdiff_t classes, ptrdiff_t i, ptrdiff_t n) {
    vector even = fill(splat((REAL)(smoothing / classes)), n, 0);
    return get(q + i, n) * (REAL)(1 - smoothing) + even;
}

// loss = weight (sum of q log(sum of exp(z)) - sum of q z) of rows z + bias, where q is
// (1 - smoothing) of the id's class, or of a row of `q`, and smoothing / classes of each; a class
// of q = 0 contributes nothing, even if its logit is -infinity. With `scale` the logits become
// their gradient, scale (sum of q softmax(z) - q). Both are 0 where the weight is.
EXPORT void softmax_loss(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, REAL* logits,
    ptrdiff_t logits_stride, const REAL* bias, const int64_t* ids, const REAL* q,
    const REAL* weights, double smoothing, REAL* losses, const REAL* scale) {
    for (ptrdiff_t r = first; r < last; r++) {
        REAL* z = logits + r * logits_stride;
        const REAL* p = q ? q + r * width : NULL;
        if (weights[r] == 0) {
            losses[r] = 0;
            if (scale) memset(z, 0, (size_t)width * sizeof(REAL));
            continue;
        }
        vector peaks = splat(-INFINITY);
        EACH_VECTOR(i, n, width)
        peaks = larger(fill(shifted(z, bias, i, n), n, -INFINITY), peaks);
        REAL peak = largest_lane(peaks);
        // Of logits less their maximum: the target's, and over the row the sums of exp(z), of z
        // where targets are smooth or else of q z, and of q.
        REAL own = p ? 0 : z[ids[r]] + (bias ? bias[ids[r]] : 0) - peak;
        vector sums = {0}, inner = {0}, masses = {0};
        EACH_VECTOR(i, n, width) {
            vector x = shifted(z, bias, i, n) - peak, y = exp_of(x);
            sums += fill(y, n, 0);
            if (p) {
                vector of_class = probability(p, smoothing, width, i, n);
                masses += of_class;
                inner += choose(of_class == 0, (vector){0}, of_class * x);
            } else if (smoothing) inner += fill(x, n, 0);
            if (scale) put(z + i, y, n);
        }
        REAL total = sum_lanes(sums), mass = p ? sum_lanes(masses) : 1;
        REAL reached = sum_lanes(inner);
        if (!p) {
            reached = (REAL)(1 - smoothing) * own;
            if (smoothing) reached += (REAL)smoothing * (sum_lanes(inner) / (REAL)width);
        }
        losses[r] = (mass * (REAL)log(total) - reached) * weights[r];
        if (!scale) continue;
        REAL factor = scale[r] * mass / total;
        REAL even = (REAL)(smoothing / width) * scale[r];
        EACH_VECTOR(i, n, width) {
            vector y = get(z + i, n) * factor;
            put(z + i, p ? y - probability(p, smoothing, width, i, n) * scale[r] : y - even, n);
        }
        if (!p) z[ids[r]] -= (REAL)(1 - smoothing) * scale[r];
    }
}
