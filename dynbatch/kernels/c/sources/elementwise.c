// The functions of two values over elements that lie side by side, those that gain on NumPy; those
// of one value are printed, as unary.c.
#include "elementwise.h"

#define CASE(NUMBER, RESULT) \
    case NUMBER: EACH_VECTOR(i, part, last - first) put(out + first + i, RESULT, part); break;
#define AT(ARRAY) get(ARRAY + first + i, part)

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
