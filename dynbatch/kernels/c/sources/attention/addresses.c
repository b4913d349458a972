// Rows that lie anywhere, read and written by their addresses; where `is_short`, in bfloat16.
#include "bfloat16.h"

EXPORT void read_rows(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, REAL* out,
    ptrdiff_t out_stride, const int64_t* addresses, int is_short) {
    for (ptrdiff_t i = first; i < last; i++) {
        const void* row = (const void*)addresses[i];
        REAL* to = out + i * out_stride;
        if (!is_short) memcpy(to, row, (size_t)width * sizeof(REAL));
        else EACH_VECTOR(c, n, width) put(to + c, get_short((const uint16_t*)row + c, n), n);
    }
}

EXPORT void write_rows(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const REAL* rows,
    ptrdiff_t rows_stride, const int64_t* addresses, int is_short) {
    for (ptrdiff_t i = first; i < last; i++) {
        void* row = (void*)addresses[i];
        const REAL* from = rows + i * rows_stride;
        if (!is_short) memcpy(row, from, (size_t)width * sizeof(REAL));
        else EACH_VECTOR(c, n, width) put_short((uint16_t*)row + c, get(from + c, n), n);
    }
}
