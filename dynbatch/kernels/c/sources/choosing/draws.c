// Logits are cut and drawn from, a row at a time while it is in the cache.
#include "functions.h"

#ifdef REAL_IS_FLOAT
typedef uint32_t bits;
#else
typedef uint64_t bits;
#endif
#define SIGN ((bits)1 << (8 * sizeof(bits) - 1))

// Bits in the order of the numbers, and the number of such bits.
INLINE bits ordered(REAL x) {
    bits b;
    memcpy(&b, &x, sizeof b);
    return b & SIGN ? ~b : b | SIGN;
}
INLINE REAL number_of(bits b) {
    b = b & SIGN ? b & ~SIGN : ~b;
    REAL x;
    memcpy(&x, &b, sizeof x);
    return x;
}

INLINE REAL largest_of(const REAL* x, ptrdiff_t classes) {
    vector peaks = splat(-INFINITY);
    EACH_VECTOR(i, n, classes) peaks = larger(fill(get(x + i, n), n, -INFINITY), peaks);
    return largest_lane(peaks);
}

// The weights, 1 without them, of the x that are `bound` or more, added up.
INLINE REAL weight_from(const REAL* x, const REAL* weights, ptrdiff_t classes, REAL bound) {
    vector sums = {0};
    EACH_VECTOR(i, n, classes) {
        vector w = weights ? get(weights + i, n) : splat(1);
        sums += choose(fill(get(x + i, n), n, -INFINITY) >= bound, w, (vector){0});
    }
    return sum_lanes(sums);
}

// The largest number from which on there is that weight; -infinity where there is not.
static REAL bound_of(
    const REAL* x, const REAL* weights, ptrdiff_t classes, REAL peak, REAL wanted) {
    bits low = ordered(-INFINITY), high = ordered(peak);
    while (low < high) {
        bits middle = high - (high - low) / 2;
        if (weight_from(x, weights, classes, number_of(middle)) >= wanted) low = middle;
        else high = middle - 1;
    }
    return number_of(low);
}

// The least probable x, the last of equal ones first, become -infinity: together 1 - top_p.
INLINE void cut_improbable(REAL* x, const REAL* weights, ptrdiff_t classes, REAL peak, REAL top_p) {
    REAL goal = top_p * weight_from(x, weights, classes, -INFINITY);
    REAL bound = bound_of(x, weights, classes, peak, goal);
    REAL before = 0;
    if (bound < peak) before = weight_from(x, weights, classes, number_of(ordered(bound) + 1));
    for (ptrdiff_t i = 0; i < classes; i++) {
        if (x[i] > bound) continue;
        if (x[i] < bound || before >= goal) x[i] = -INFINITY;
        else before += weights[i];
    }
}

// Temperature, top-k, top-p and min-p of each row, by four numbers a row; -infinity is cut off.
EXPORT void cut_rows(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, REAL* logits,
    const double* cuts, REAL* scratch) {
    for (ptrdiff_t r = first; r < last; r++) {
        const double* cut = cuts + 4 * r;
        REAL *x = logits + r * width, *weights = scratch + r * width;
        REAL temperature = (REAL)cut[0], top_p = (REAL)cut[2], min_p = (REAL)cut[3];
        if (temperature != 1) EACH_VECTOR(i, n, width) put(x + i, get(x + i, n) / temperature, n);
        REAL peak = largest_of(x, width);
        if (0 < cut[1] && cut[1] < (double)width) {
            REAL bound = bound_of(x, NULL, width, peak, (REAL)cut[1]);
            EACH_VECTOR(i, n, width) {
                vector z = get(x + i, n);
                put(x + i, choose(z < bound, splat(-INFINITY), z), n);
            }
        }
        if (top_p == 1 && min_p == 0) continue;
        EACH_VECTOR(i, n, width) put(weights + i, exp_of(get(x + i, n) - peak), n);
        if (top_p < 1) cut_improbable(x, weights, width, peak, top_p);
        EACH_VECTOR(i, n, width) {
            vector z = get(x + i, n);
            put(x + i, choose(get(weights + i, n) < min_p, splat(-INFINITY), z), n);
        }
    }
}

// The first lane that is not below.
INLINE ptrdiff_t first_from(vector x, ptrdiff_t n, REAL bound) {
    for (ptrdiff_t k = 0; k < n; k++)
        if (!(x[k] < bound)) return k;
    return n;
}

// The first of the largest; a NaN counts as such.
INLINE ptrdiff_t place_of_largest(const REAL* x, ptrdiff_t classes) {
    REAL peak = largest_of(x, classes);
    vector unknown = {0};
    EACH_VECTOR(i, n, classes) {
        vector z = get(x + i, n);
        unknown = choose(z == z, unknown, splat(1));
    }
    if (sum_lanes(unknown) > 0) peak = INFINITY;
    EACH_VECTOR(i, n, classes) {
        ptrdiff_t found = first_from(get(x + i, n), n, peak);
        if (found < n) return i + found;
    }
    return 0;
}

// The first class whose weights exp(x), added up, exceed `uniform` of them all.
INLINE ptrdiff_t drawn_from(const REAL* x, ptrdiff_t classes, double uniform) {
    REAL peak = largest_of(x, classes);
    double total = 0, sum = 0;
    EACH_VECTOR(i, n, classes) total += sum_lanes(fill(exp_of(get(x + i, n) - peak), n, 0));
    // Below the total, whatever the product rounds to: behind the last class there is none.
    double goal = fmin(uniform * total, nextafter(total, 0));
    EACH_VECTOR(i, n, classes) {
        vector weights = fill(exp_of(get(x + i, n) - peak), n, 0);
        double next = sum + sum_lanes(weights);
        if (!(next > goal)) {
            sum = next;
            continue;
        }
        ptrdiff_t found = i;  // rounding may hide from the lanes what their sum exceeds
        for (ptrdiff_t k = 0; k < n; k++) {
            if (weights[k] == 0) continue;
            found = i + k;
            sum += weights[k];
            if (sum > goal) break;
        }
        return found;
    }
    return 0;
}

// A class of each row: drawn by a number in [0, 1), or the most probable where it is below 0.
EXPORT void draw_rows(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const REAL* x,
    const double* uniforms, int64_t* out) {
    for (ptrdiff_t r = first; r < last; r++) {
        const REAL* row = x + r * width;
        if (uniforms[r] < 0) out[r] = place_of_largest(row, width);
        else out[r] = drawn_from(row, width, uniforms[r]);
    }
}
