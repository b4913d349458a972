// Sums, copies and choices of elements that lie side by side; loops.c, which is printed, has the
// functions that gain on NumPy.
#include "elementwise.h"

#define AT(ARRAY) get(ARRAY + first + i, part)

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
