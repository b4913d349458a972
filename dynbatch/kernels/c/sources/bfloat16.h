// Numbers rounded to bfloat16, which is the upper half of a float.
#include "common.h"

typedef uint32_t bit_vector __attribute__((vector_size(VECTOR_BYTES)));
#define INFINITE 0x7f800000u
#define SIGN 0x80000000u

// The nearest bfloat16 of each number, of two the even one, in the upper halves. Infinity stays, and
// what is too large becomes it; NaN stays one, quiet, with as much of its payload as there is room for.
INLINE bit_vector nearest_bfloat16(bit_vector bits) {
    bit_vector is_nan = (bit_vector)((bits & ~SIGN) > INFINITE);
    bit_vector rounded = bits + 0x7fff + (bits >> 16 & 1);
    return ((is_nan & (bits | 0x400000)) | (~is_nan & rounded)) >> 16 << 16;
}
