// Values in bfloat16, of float32 alone: no graph of float64 has any.
#include "bfloat16.h"

#ifdef REAL_IS_FLOAT
typedef uint16_t half_vector __attribute__((vector_size(VECTOR_BYTES / 2)));

INLINE bit_vector rounded(const REAL* x, ptrdiff_t n) {
    return nearest_bfloat16((bit_vector)get(x, n));
}
#endif

// x = the nearest bfloat16 of each, for elements first, …, last - 1; so also below.
EXPORT void round_values(ptrdiff_t first, ptrdiff_t last, REAL* x) {
#ifdef REAL_IS_FLOAT
    x += first;
    EACH_VECTOR(i, n, last - first) { put(x + i, (vector)rounded(x + i, n), n); }
#endif
}

// The same, and out = the upper halves.
EXPORT void narrow(ptrdiff_t first, ptrdiff_t last, REAL* x, uint16_t* out) {
#ifdef REAL_IS_FLOAT
    x += first, out += first;
    EACH_VECTOR(i, n, last - first) {
        bit_vector bits = rounded(x + i, n);
        put(x + i, (vector)bits, n);
        half_vector halves = __builtin_convertvector(bits >> 16, half_vector);
        if (n == LANES) memcpy(out + i, &halves, sizeof halves);
        else memcpy(out + i, &halves, (size_t)n * sizeof *out);
    }
#endif
}

// out = the numbers whose upper halves are x.
EXPORT void widen(ptrdiff_t first, ptrdiff_t last, const uint16_t* x, REAL* out) {
#ifdef REAL_IS_FLOAT
    x += first, out += first;
    EACH_VECTOR(i, n, last - first) {
        half_vector halves = {0};
        if (n == LANES) memcpy(&halves, x + i, sizeof halves);
        else memcpy(&halves, x + i, (size_t)n * sizeof *x);
        put(out + i, (vector)(__builtin_convertvector(halves, bit_vector) << 16), n);
    }
#endif
}
