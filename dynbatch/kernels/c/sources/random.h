// Random bits that are a hash of (stream, number), as in kernels/dropout.py.
#include "common.h"

// As many as a vector of REAL has lanes.
typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES / sizeof(REAL) * 4)));
typedef int32_t word_mask __attribute__((vector_size(VECTOR_BYTES / sizeof(REAL) * 4)));

// first, first + 1, …, modulo 2^32.
INLINE words numbers_from(uint32_t first) {
    words x;
    for (ptrdiff_t i = 0; i < LANES; i++) x[i] = (uint32_t)i;
    return x + first;
}

// Source: Wellons 2018, "Prospecting for Hash Functions", lowbias32 (public domain).
INLINE words hash32(words x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}

// hash(hash(number) ^ stream).
INLINE words random_bits(words numbers, uint32_t stream) {
    return hash32(hash32(numbers) ^ stream);
}

// What dropout with probability p multiplies elements of these numbers by: 1 / (1 - p) where bits /
// 2^32 >= p, else 0.
INLINE vector kept(words numbers, uint32_t stream, double p) {
    double bound = p * 4294967296.0;
    word_mask keeps =
        random_bits(numbers, stream) >= (uint32_t)(bound < 4294967295.0 ? bound : 4294967295.0);
    REAL scale = (REAL)(p < 1 ? 1 / (1 - p) : 0);
    return choose(__builtin_convertvector(keeps, mask), splat(scale), splat(0));
}
