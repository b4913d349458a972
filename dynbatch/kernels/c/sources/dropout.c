// Dropout whose mask is a hash of (stream, element number): kernels/dropout.py tells more.
#include "random.h"

// out_i = x_i / (1 - p_k) where the random bits of element i of segment k are at least 2^32 p_k, else
// x_i 0, for elements first, …, last - 1.
EXPORT void dropout(ptrdiff_t first, ptrdiff_t last, const int64_t* offsets,
    const uint32_t* streams, const double* probabilities, const REAL* x, REAL* out) {
    for (ptrdiff_t k = 0; first < last; k++) {
        if (offsets[k + 1] <= first) continue;
        ptrdiff_t start = offsets[k], count = least(offsets[k + 1], last) - first;
        words numbers = numbers_from((uint32_t)(first - start));
        EACH_VECTOR(i, n, count) {
            vector factor = kept(numbers + (uint32_t)i, streams[k], probabilities[k]);
            put(out + first + i, get(x + first + i, n) * factor, n);
        }
        first += count;
    }
}
