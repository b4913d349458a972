// Elements of vectors in another order.
#include "common.h"

#if VECTOR_BYTES == 64 && defined(REAL_IS_FLOAT)
#define FIRST 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SECOND 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define SWAPPED 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#elif VECTOR_BYTES == 64 || (VECTOR_BYTES == 32 && defined(REAL_IS_FLOAT))
#define FIRST 0, 8, 1, 9, 2, 10, 3, 11
#define SECOND 4, 12, 5, 13, 6, 14, 7, 15
#define SWAPPED 1, 0, 3, 2, 5, 4, 7, 6
#elif VECTOR_BYTES == 32 || defined(REAL_IS_FLOAT)
#define FIRST 0, 4, 1, 5
#define SECOND 2, 6, 3, 7
#define SWAPPED 1, 0, 3, 2
#else
#define FIRST 0, 2
#define SECOND 1, 3
#define SWAPPED 1, 0
#endif

// An element of a and one of b in turn: those of their first halves, and of their second halves.
INLINE vector first_halves(vector a, vector b) { return __builtin_shufflevector(a, b, FIRST); }
INLINE vector second_halves(vector a, vector b) { return __builtin_shufflevector(a, b, SECOND); }
// The two elements of each pair swapped.
INLINE vector swapped(vector x) { return __builtin_shufflevector(x, x, SWAPPED); }
