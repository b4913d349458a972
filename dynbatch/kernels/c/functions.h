// Functions of vectors. In float: polynomials, to a few units in the last place; in double, which
// tests use, the C library's.
#include "common.h"

#ifdef REAL_IS_FLOAT

// e^x = 2^k e^r with |r| <= log(2) / 2; a polynomial as in Cephes' expf. 0 below -104, infinity
// above 89; NaN stays NaN.
INLINE vector exp_of(vector x) {
    vector low = splat(-104.0f), high = splat(89.0f);
    vector within = choose(x < low, low, x);
    within = choose(within > high, high, within);
    vector k = (within * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
    vector r = within - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    // In two steps: 2^k alone may be below or above what a float holds.
    mask all = __builtin_convertvector(k, mask), half = all >> 1;
    mask other = all - half;
    return p * (vector)((half + 127) << 23) * (vector)((other + 127) << 23);
}

// A rational function of degrees 13 and 6, as in Eigen's ptanh, exact to 3e-7.
INLINE vector tanh_of(vector x) {
    vector limit = splat(7.90531110763549805f);
    vector c = choose(x > limit, limit, x);
    c = choose(c < -limit, -limit, c);
    vector t = c * c;
    vector p = t * -2.76076847742355e-16f + 2.00018790482477e-13f;
    p = t * p - 8.60467152213735e-11f;
    p = t * p + 5.12229709037114e-08f;
    p = t * p + 1.48572235717979e-05f;
    p = t * p + 6.37261928875436e-04f;
    p = t * p + 4.89352455891786e-03f;
    vector q = t * 1.19825839466702e-06f + 1.18534705686654e-04f;
    q = t * q + 2.26843463243900e-03f;
    q = t * q + 4.89352518554385e-03f;
    return c * p / q;
}

INLINE vector sigmoid_of(vector x) { return tanh_of(x * 0.5f) * 0.5f + 0.5f; }
INLINE vector sqrt_of(vector x) {
    for (ptrdiff_t i = 0; i < LANES; i++) x[i] = sqrtf(x[i]);
    return x;
}

#else

#define LANE_BY_LANE(NAME, CALL)                                 \
    INLINE vector NAME(vector x) {                               \
        for (ptrdiff_t i = 0; i < LANES; i++) x[i] = CALL(x[i]); \
        return x;                                                \
    }
LANE_BY_LANE(exp_of, exp)
LANE_BY_LANE(tanh_of, tanh)
LANE_BY_LANE(sqrt_of, sqrt)
INLINE vector sigmoid_of(vector x) { return tanh_of(x * 0.5) * 0.5 + 0.5; }

#endif
