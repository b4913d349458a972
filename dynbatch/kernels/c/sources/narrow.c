// Values in bfloat16, of float32 alone: no graph of float64 has any.
#include "bfloat16.h"

#ifdef REAL_IS_FLOAT
// At most a vector of n numbers; n is a constant where it is a whole one.

INLINE bit_vector round_part(REAL* x, ptrdiff_t n) {
    bit_vector bits = nearest_bfloat16((bit_vector)get(x, n));
    put(x, (vector)bits, n);
    return bits;
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
    EACH_PART(put_halves(out + i, round_part(x + i, n), n));
}

// out = the numbers whose upper halves are x.
EXPORT void widen(ptrdiff_t first, ptrdiff_t last, const uint16_t* x, REAL* out) {
    EACH_PART(put(out + i, get_short(x + i, n), n));
}
