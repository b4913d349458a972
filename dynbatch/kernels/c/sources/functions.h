// Functions of vectors. In float: polynomials, to a few units in the last place; in double, which
// tests use, the C library's.
#include "common.h"

INLINE vector absolute_of(vector x) { return (vector)((mask)x & ~(mask)splat((REAL)-0.0)); }

// A NaN wins.
INLINE vector maximum_of(vector a, vector b) { return choose(b != b, b, larger(b, a)); }

#ifdef REAL_IS_FLOAT

// k and r of x = k log(2) + r with |r| <= log(2) / 2; r has no rounding error of x's size.
INLINE vector parts_of_exponent(vector x, vector* k) {
    *k = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
    vector r = x - *k * 0.693359375f;
    return r + *k * 2.12194440e-4f;
}

// e^r - 1 for small r; a polynomial as in Cephes' expf.
INLINE vector expm1_near_0(vector r) {
    vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * r * r + r;
}

// e^(x + rest) = 2^k e^r; 0 below -104, infinity above 89, NaN stays NaN. `rest` is what x was
// rounded by, at most 1/8.
INLINE vector exp_of_sum(vector x, vector rest) {
    vector k, r = parts_of_exponent(smaller(splat(89.0f), larger(splat(-104.0f), x)), &k);
    return times_power(expm1_near_0(r + rest) + 1.0f, k);
}
INLINE vector exp_of(vector x) { return exp_of_sum(x, (vector){0}); }

// e^x - 1 = 2^k (e^r - 1) + (2^k - 1) for x <= 0.
INLINE vector expm1_of(vector x) {
    vector k, r = parts_of_exponent(larger(splat(-104.0f), x), &k);
    vector scale = times_power(splat(1), k);
    return expm1_near_0(r) * scale + (scale - 1.0f);
}

// log(1 + r) for 1/√2 <= 1 + r < √2; a polynomial as in Cephes' logf.
INLINE vector log1p_near_0(vector r) {
    vector p = r * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r - 1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r - 1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r - 2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    vector square = r * r;
    return p * r * square - square * 0.5f + r;
}

// log(x) = log(m) + k log(2) with x = 2^k m, 1/√2 <= m < √2. -infinity at 0, NaN below and of NaN.
INLINE vector log_of(vector x) {
    vector positive = choose(x > 0, x, splat(1));
    mask is_tiny = positive < 1.17549435e-38f;  // of fewer digits: made larger by 2^23
    mask bits = (mask)choose(is_tiny, positive * 8388608.0f, positive);
    mask power = (bits - 0x3f3504f3) >> 23;
    vector m = (vector)(bits - (power << 23));
    vector k = __builtin_convertvector(power - (is_tiny & 23), vector);
    vector y = log1p_near_0(m - 1.0f) - k * 2.12194440e-4f + k * 0.693359375f;
    y = choose(x < INFINITY, y, splat(INFINITY));
    return choose(x > 0, y, choose(x == 0, splat(-INFINITY), splat(NAN)));
}

// log(1 + x) for 0 <= x <= 1.
INLINE vector log1p_of(vector x) {
    mask is_far = x > 0.41421356f;
    vector y = log1p_near_0(choose(is_far, x * 0.5f - 0.5f, x));
    return y + choose(is_far, splat(0.69314718056f), splat(0));
}

// A rational function of degrees 13 and 6 on [-9.05, 9.05], beyond which tanh is 1. Its
// coefficients, from least squares that were weighted until errors were alike, are good to 7e-9.
INLINE vector tanh_of(vector x) {
    vector c = smaller(splat(9.05f), larger(splat(-9.05f), x));
    vector t = c * c;
    vector p = t * -8.35763707633074e-14f + 5.2276379965689973e-11f;
    p = t * p - 2.0122123734860744e-8f;
    p = t * p + 1.1129155833761622e-5f;
    p = t * p + 3.101565377804576e-3f;
    p = t * p + 1.3081873353622286e-1f;
    p = t * p + 9.999999929834091e-1f;
    vector q = t * 2.5426556627788314e-4f + 2.4485669085694998e-2f;
    q = t * q + 4.6415200100113446e-1f;
    q = t * q + 1.0f;
    return smaller(splat(1.0f), larger(splat(-1.0f), c * p / q));  // rounding may have passed 1
}

#else

#define LANE_BY_LANE(NAME, CALL)                                 \
    INLINE vector NAME(vector x) {                               \
        for (ptrdiff_t i = 0; i < LANES; i++) x[i] = CALL(x[i]); \
        return x;                                                \
    }
LANE_BY_LANE(exp_of, exp)
LANE_BY_LANE(expm1_of, expm1)
LANE_BY_LANE(log_of, log)
LANE_BY_LANE(log1p_of, log1p)
LANE_BY_LANE(tanh_of, tanh)
LANE_BY_LANE(erf_of, erf)

#endif

// The C library's, lane by lane.
#define BY_THE_LIBRARY(NAME, FLOAT, DOUBLE)                                           \
    INLINE vector NAME(vector x) {                                                    \
        for (ptrdiff_t i = 0; i < LANES; i++) {                                       \
            x[i] = sizeof(REAL) == sizeof(float) ? FLOAT((float)x[i]) : DOUBLE(x[i]); \
        }                                                                             \
        return x;                                                                     \
    }
BY_THE_LIBRARY(sin_of, sinf, sin)
BY_THE_LIBRARY(cos_of, cosf, cos)
BY_THE_LIBRARY(tan_of, tanf, tan)
BY_THE_LIBRARY(asin_of, asinf, asin)
BY_THE_LIBRARY(acos_of, acosf, acos)
BY_THE_LIBRARY(atan_of, atanf, atan)
BY_THE_LIBRARY(sinh_of, sinhf, sinh)
BY_THE_LIBRARY(cosh_of, coshf, cosh)
BY_THE_LIBRARY(asinh_of, asinhf, asinh)
BY_THE_LIBRARY(acosh_of, acoshf, acosh)
BY_THE_LIBRARY(atanh_of, atanhf, atanh)
BY_THE_LIBRARY(rint_of, rintf, rint)
BY_THE_LIBRARY(floor_of, floorf, floor)
BY_THE_LIBRARY(ceil_of, ceilf, ceil)

// √(1 + x²), also where x² overflows.
INLINE vector hypot1_of(vector x) {
    vector a = absolute_of(x), large = choose(a > 1, a, splat(1)), small = choose(a > 1, 1 / a, a);
    return large * sqrt_of(1 + small * small);
}

// a^b, lane by lane.
INLINE vector pow_of(vector a, vector b) {
    for (ptrdiff_t i = 0; i < LANES; i++) {
        a[i] = sizeof(REAL) == sizeof(float) ? powf((float)a[i], (float)b[i]) : pow(a[i], b[i]);
    }
    return a;
}
