// The functions of kernels/unary/ and kernels/binary.py, and their gradients, on vectors.
//
// unary.h is printed from the definitions of kernels/unary/: NAME_of(x, arguments...) and
// NAME_back(dy, s, arguments...), where s is x or y as `reads` says, else not read. "gelu" with
// "tanh" is gelu_tanh. So is pairs.h from those of kernels/binary.py: NAME_of(a, b) with
// NAME_back_a(dy, a, b), the gradient of a, and NAME_back_b. Here are the primitives, and
// where_of(m, a, b) with where_back_a(dy, m) and where_back_b(dy, m).
// A static argument is one REAL for all elements; so is a function's number: add_of(x, splat(2)).
// With dy = splat(1) a gradient is the derivative.
#include "functions.h"

INLINE vector zeros(void) { return (vector){0}; }
INLINE vector ones(void) { return splat(1); }

// The primitives that functions.h lacks:

// The sign of x: NaN for NaN.
INLINE vector sign_of(vector x) {
    return choose(x > 0, ones(), choose(x < 0, -ones(), choose(x == 0, zeros(), x)));
}

// The exponents that are products or quotients need no logarithm.
INLINE vector power_of(vector x, REAL exponent) {
    if (exponent == 1) return x;
    if (exponent == 2) return x * x;
    if (exponent == 3) return x * x * x;
    if (exponent == -1) return 1 / x;
    if (exponent == -2) return 1 / (x * x);
    if (exponent == (REAL)0.5) return sqrt_of(x);  // NaN of -infinity, as in NumPy and PyTorch
    return pow_of(x, splat(exponent));
}

INLINE vector clip_of(vector x, REAL low, REAL high) {
    return smaller(splat(high), larger(splat(low), x));
}

// The leading bits of a number, so few that its square is exact.
#ifdef REAL_IS_FLOAT
#define HEAD (-(1 << 12))
#else
#define HEAD (-(1LL << 27))
#endif

// Phi(x), the probability of less than x, and e^(-x^2 / 2) in `density`; see
// kernels/scalar/normal.py.
INLINE vector normal_of(vector x, vector* density) {
#ifdef REAL_IS_FLOAT
    vector a = smaller(splat(14.5f), absolute_of(x));
    // a^2 is head^2, which has no rounding error, and a rest.
    vector head = (vector)((mask)a & HEAD);
    *density = exp_of_sum(head * head * -0.5f, (a - head) * (a + head) * -0.5f);
    // The probability of more than a is t e^(-a^2 / 2) times a polynomial in t = 1 / (a + 3.5),
    // found as tanh's in functions.h, good to 7e-9; u is t scaled to [-1, 1].
    vector t = 1 / (a + 3.5f), u = 1.4827586206896552f - 8.689655172413794f * t;
    vector p = u * 1.581105336e-5f + 4.04635734e-5f;
    p = p * u - 2.202493651e-4f;
    p = p * u - 5.802237769e-4f;
    p = p * u + 3.273752664e-3f;
    p = p * u + 3.982947898e-3f;
    p = p * u - 6.623144421e-2f;
    p = p * u + 2.508265441e-1f;
    p = p * u - 5.653798479e-1f;
    p = p * u + 8.67188303e-1f;
    vector above = p * t * *density;
    return choose(x > 0, 1 - above, above);
#else
    vector a = smaller(splat(40), absolute_of(x)), above;
    for (ptrdiff_t i = 0; i < LANES; i++) {
        // z = a / sqrt(2) and a^2 have rounding errors, which count where the result is small.
        double z = a[i] * 0.70710678118654752440, square = a[i] * a[i];
        double rest = fma(a[i], 0.70710678118654752440, -z) - a[i] * 4.8336466567264567e-17;
        double e = exp(square * -0.5) * (1 - 0.5 * fma(a[i], a[i], -square));
        above[i] = 0.5 * erfc(z) - e * rest * 0.56418958354775628695;  // 1/sqrt(pi)
        (*density)[i] = e;
    }
    return choose(x > 0, 1 - above, above);
#endif
}

// sigma(x), and its distance from 1 in `above`.
INLINE vector sigmoids_of(vector x, vector* above) {
    vector e = exp_of(-absolute_of(x)), near = 1 / (1 + e), far = e * near;
    *above = choose(x < 0, near, far);
    return choose(x < 0, far, near);
}

#ifdef REAL_IS_FLOAT
INLINE vector erf_of(vector x) {
    vector density, a = absolute_of(x), square = x * x;
    vector far = 2 * normal_of(a * 1.41421356f, &density) - 1;
    // 2/sqrt(pi) sum_k (-1)^k x^(2k+1) / (k! (2k + 1)).
    vector p = square * 1.20553329e-4f - 8.54832701e-4f;
    p = p * square + 5.22397762e-3f;
    p = p * square - 2.68661706e-2f;
    p = p * square + 1.12837917e-1f;
    p = p * square - 3.76126389e-1f;
    p = p * square + 1.12837917f;
    return choose(a <= 0.5f, p * x, choose(x < 0, -far, far));
}
#endif

// e^(-x^2).
INLINE vector gauss_of(vector x) {
    vector a = smaller(splat(40), absolute_of(x));  // beyond, it is 0
    vector head = (vector)((mask)a & HEAD);         // head^2 has no rounding error
    return exp_of(-head * head) * exp_of((head - a) * (a + head));
}

INLINE vector minimum_of(vector a, vector b) { return choose(b != b, b, smaller(b, a)); }

#include "pairs.h"
#include "unary.h"

INLINE vector where_of(vector m, vector a, vector b) { return choose(m != 0, a, b); }
INLINE vector where_back_a(vector dy, vector m) { return choose(m != 0, dy, zeros()); }
INLINE vector where_back_b(vector dy, vector m) { return choose(m != 0, zeros(), dy); }
