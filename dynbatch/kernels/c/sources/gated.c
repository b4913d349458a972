// Gated units over rows; see kernels/gated.py.
#include "elementwise.h"

#define EACH_ELEMENT \
    for (ptrdiff_t row = first; row < last; row++) EACH_VECTOR(i, part, width)
#define AT(ARRAY, STRIDE) get(ARRAY + row * STRIDE + i, part)

#define CASE(NUMBER, RESULT)                                                \
    case NUMBER:                                                            \
        EACH_ELEMENT {                                                      \
            vector x = AT(gate, stride);                                    \
            put(out + row * width + i, (RESULT) * AT(value, stride), part); \
        }                                                                   \
        break;

// out = f(gate) value of rows first to last. Python reads the number of a function here.
EXPORT void gated(ptrdiff_t first, ptrdiff_t last, int function, ptrdiff_t width, ptrdiff_t stride,
    const REAL* gate, const REAL* value, REAL* out) {
    switch (function) {
        CASE(0, sigmoid_of(x))
        CASE(1, relu_of(x))
        CASE(2, silu_of(x))
        CASE(3, gelu_of(x))
        CASE(4, gelu_tanh_of(x))
    }
}

#undef CASE
#define CASE(NUMBER, RESULT, SLOPE)                                                             \
    case NUMBER:                                                                                \
        EACH_ELEMENT {                                                                          \
            vector x = AT(gate, stride), above = AT(dy, width), dx = above * AT(value, stride); \
            vector y = RESULT;                                                                  \
            if (dgate) put(dgate + row * stride + i, SLOPE, part);                              \
            if (dvalue) put(dvalue + row * stride + i, above * y, part);                        \
        }                                                                                       \
        break;

// dgate = dy value f'(gate), dvalue = dy f(gate). Either may be NULL, or lie where dy lies.
EXPORT void gated_backward(ptrdiff_t first, ptrdiff_t last, int function, ptrdiff_t width,
    ptrdiff_t stride, const REAL* dy, const REAL* gate, const REAL* value, REAL* dgate,
    REAL* dvalue) {
    switch (function) {
        CASE(0, sigmoid_of(x), sigmoid_back(dx, y))
        CASE(1, relu_of(x), relu_back(dx, y))
        CASE(2, silu_of(x), silu_back(dx, x))
        CASE(3, gelu_of(x), gelu_back(dx, x))
        CASE(4, gelu_tanh_of(x), gelu_tanh_back(dx, x))
    }
}
