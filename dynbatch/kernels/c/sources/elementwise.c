// The functions of one value and of two over elements that lie side by side, those that gain on
// NumPy.
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
        CASE(10, erf_of(AT(x)))
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
        CASE(13, erf_back(AT(dy), AT(s)))
    }
}

// out = dy df/da and dy df/db of y = f(a, b); `out` may be dy.
EXPORT void combine_backward(ptrdiff_t first, ptrdiff_t last, int function, const REAL* dy,
    const REAL* a, const REAL* b, REAL* out) {
    switch (function) {
        CASE(0, maximum_back_a(AT(dy), AT(a), AT(b)))
        CASE(1, maximum_back_b(AT(dy), AT(a), AT(b)))
        CASE(2, minimum_back_a(AT(dy), AT(a), AT(b)))
        CASE(3, minimum_back_b(AT(dy), AT(a), AT(b)))
        CASE(4, divide_back_b(AT(dy), AT(a), AT(b)))
    }
}

// What NumPy does as fast, for threads to share without the interpreter:

EXPORT void add(ptrdiff_t first, ptrdiff_t last, const REAL* a, const REAL* b, REAL* out) {
    EACH_VECTOR(i, part, last - first) put(out + first + i, AT(a) + AT(b), part);
}

EXPORT void copy(ptrdiff_t first, ptrdiff_t last, const REAL* x, REAL* out) {
    memcpy(out + first, x + first, (size_t)(last - first) * sizeof(REAL));
}

EXPORT void set(ptrdiff_t first, ptrdiff_t last, REAL* out, double number) {
    EACH_VECTOR(i, part, last - first) put(out + first + i, splat((REAL)number), part);
}

EXPORT void where(
    ptrdiff_t first, ptrdiff_t last, const REAL* mask, const REAL* a, const REAL* b, REAL* out) {
    EACH_VECTOR(i, part, last - first)
    put(out + first + i, where_of(AT(mask), AT(a), AT(b)), part);
}

EXPORT void where_backward(
    ptrdiff_t first, ptrdiff_t last, int side, const REAL* dy, const REAL* mask, REAL* out) {
    EACH_VECTOR(i, part, last - first) {
        vector m = AT(mask), above = AT(dy);
        put(out + first + i, side ? where_back_b(above, m) : where_back_a(above, m), part);
    }
}
