// Values in bfloat16, of float32 alone: no graph of float64 has any.
#include "bfloat16.h"

#ifdef REAL_IS_FLOAT
typedef uint16_t half_vector __attribute__((vector_size(VECTOR_BYTES / 2)));

// At most a vector of n numbers; n is a constant where it is a whole one.

INLINE bit_vector round_part(REAL* x, ptrdiff_t n) {
    bit_vector bits = nearest_bfloat16((bit_vector)get(x, n));
    put(x, (vector)bits, n);
    return bits;
}

INLINE void narrow_part(REAL* x, uint16_t* out, ptrdiff_t n) {
    half_vector halves = __builtin_convertvector(round_part(x, n) >> 16, half_vector);
    memcpy(out, &halves, (size_t)n * sizeof *out);
}

INLINE void widen_part(const uint16_t* x, REAL* out, ptrdiff_t n) {
    half_vector halves = {0};
    memcpy(&halves, x, (size_t)n * sizeof *x);
    put(out, (vector)(__builtin_convertvector(halves, bit_vector) << 16), n);
}

// For the whole vectors of elements first, …, last - 1, then for the rest: a call in the loop, as memcpy
// of any number, would cost a third of its time.
#define EACH_PART(call)                         \
    ptrdiff_t i = first, n = LANES;             \
    for (; last - i >= LANES; i += LANES) call; \
    if ((n = last - i)) call
#else
#define EACH_PART(call)
#endif

// x = the nearest bfloat16 of each, for elements first, …, last - 1.
EXPORT void round_values(ptrdiff_t first, ptrdiff_t last, REAL* x) {
    EACH_PART(round_part(x + i, n));
}

// The same, and out = the upper halves.
EXPORT void narrow(ptrdiff_t first, ptrdiff_t last, REAL* x, uint16_t* out) {
    EACH_PART(narrow_part(x + i, out + i, n));
}

// out = the numbers whose upper halves are x.
EXPORT void widen(ptrdiff_t first, ptrdiff_t last, const uint16_t* x, REAL* out) {
    EACH_PART(widen_part(x + i, out + i, n));
}
