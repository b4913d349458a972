// Copies between places of two arrays, a table of rectangles at once.
#include "common.h"

// The columns of the table, as in kernels/move.py.
enum { SOURCE, SOURCE_STRIDE, TARGET, TARGET_STRIDE, ROWS, WIDTH, COLUMNS };

// Elements first, …, last - 1 of all moves, counted move by move and row by row. If `add`, they are
// added to the target, in order.
EXPORT void move(ptrdiff_t first, ptrdiff_t last, ptrdiff_t count, const int64_t* moves,
    const REAL* source, REAL* target, ptrdiff_t add) {
    for (const int64_t* m = moves; m < moves + count * COLUMNS && last > 0; m += COLUMNS) {
        ptrdiff_t size = m[ROWS] * m[WIDTH], end = least(last, size);
        int is_packed = m[SOURCE_STRIDE] == m[WIDTH] && m[TARGET_STRIDE] == m[WIDTH];
        ptrdiff_t width = is_packed ? size : m[WIDTH];
        for (ptrdiff_t element = most(first, 0); element < end;) {
            ptrdiff_t row = element / width, column = element % width;
            ptrdiff_t n = least(width - column, end - element);
            const REAL* from = source + m[SOURCE] + row * m[SOURCE_STRIDE] + column;
            REAL* to = target + m[TARGET] + row * m[TARGET_STRIDE] + column;
            if (add) {
                EACH_VECTOR(i, part, n) {
                    put(to + i, get(to + i, part) + get(from + i, part), part);
                }
            } else memcpy(to, from, (size_t)n * sizeof(REAL));
            element += n;
        }
        first -= size;
        last -= size;
    }
}
