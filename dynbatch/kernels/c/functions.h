// Functions of vectors. In float: polynomials, to a few units in the last place; in double, which
// tests use, the C library's.
#include "common.h"

#ifdef REAL_IS_FLOAT

// e^x = 2^k e^r with |r| <= log(2) / 2; a polynomial as in Cephes' expf. 0 below -104, infinity
// above 89; NaN stays NaN.
INLINE vector exp_of(vector x) {
    vector within = smaller(splat(89.0f), larger(splat(-104.0f), x));
    vector k = (within * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
    vector r = within - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return times_power(p * r * r + r + 1.0f, k);
}

// log(x) = log(m) + k log(2) with x = 2^k m, 1/√2 <= m < √2; a polynomial as in Cephes' logf.
// -infinity at 0, NaN below and of NaN.
INLINE vector log_of(vector x) {
    mask is_tiny = x < 1.17549435e-38f;  // of fewer digits: made larger by 2^23
    mask bits = (mask)choose(is_tiny, x * 8388608.0f, x);
    mask power = (bits - 0x3f3504f3) >> 23;
    vector r = (vector)(bits - (power << 23)) - 1.0f;
    vector k = __builtin_convertvector(power - (is_tiny & 23), vector);
    vector p = r * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r - 1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r - 1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r - 2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    vector square = r * r;
    p = p * r * square - k * 2.12194440e-4f - square * 0.5f;
    vector y = r + p + k * 0.693359375f;
    y = choose(x == 0, splat(-INFINITY), choose(x < INFINITY, y, x));
    return choose(x < 0, splat(NAN), y);
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

#else

#define LANE_BY_LANE(NAME, CALL)                                 \
    INLINE vector NAME(vector x) {                               \
        for (ptrdiff_t i = 0; i < LANES; i++) x[i] = CALL(x[i]); \
        return x;                                                \
    }
LANE_BY_LANE(exp_of, exp)
LANE_BY_LANE(tanh_of, tanh)
LANE_BY_LANE(log_of, log)
INLINE vector sigmoid_of(vector x) { return tanh_of(x * 0.5) * 0.5 + 0.5; }

#endif
