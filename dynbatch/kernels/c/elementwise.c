// The functions of one value over elements that lie side by side, those that gain on NumPy.
#include "elementwise.h"

#define CASE(NUMBER, RESULT) \
    case NUMBER: EACH_VECTOR(i, part, last - first) put(out + first + i, RESULT, part); break;
#define AT(ARRAY) get(ARRAY + first + i, part)

// out = f(x; arguments) of elements first to last. Python reads the number of a function here.
EXPORT void apply(ptrdiff_t first, ptrdiff_t last, int function, const REAL* x, REAL* out,
    double argument, double other) {
    REAL a = (REAL)argument;
    switch (function) {
        CASE(0, sigmoid_of(AT(x)))
        CASE(1, relu_of(AT(x)))
        CASE(2, power_of(AT(x), a))
        CASE(3, leaky_relu_of(AT(x), a))
        CASE(4, elu_of(AT(x), a))
        CASE(5, gelu_of(AT(x)))
        CASE(6, gelu_tanh_of(AT(x)))
        CASE(7, silu_of(AT(x)))
        CASE(8, softplus_of(AT(x)))
        CASE(9, log_sigmoid_of(AT(x)))
    }
}

// out = dy f'(s; arguments), with s what the function's `reads` says; `out` may be dy.
EXPORT void apply_backward(ptrdiff_t first, ptrdiff_t last, int function, const REAL* dy,
    const REAL* s, REAL* out, double argument, double other) {
    REAL a = (REAL)argument, b = (REAL)other;
    switch (function) {
        CASE(0, sigmoid_back(AT(dy), AT(s)))
        CASE(1, tanh_back(AT(dy), AT(s)))
        CASE(2, relu_back(AT(dy), AT(s)))
        CASE(3, absolute_back(AT(dy), AT(s)))
        CASE(4, power_back(AT(dy), AT(s), a))
        CASE(5, clip_back(AT(dy), AT(s), a, b))
        CASE(6, leaky_relu_back(AT(dy), AT(s), a))
        CASE(7, elu_back(AT(dy), AT(s), a))
        CASE(8, gelu_back(AT(dy), AT(s)))
        CASE(9, gelu_tanh_back(AT(dy), AT(s)))
        CASE(10, silu_back(AT(dy), AT(s)))
        CASE(11, softplus_back(AT(dy), AT(s)))
        CASE(12, log_sigmoid_back(AT(dy), AT(s)))
    }
}
