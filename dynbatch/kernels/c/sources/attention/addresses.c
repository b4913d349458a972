// Rows that lie anywhere, read and written by their addresses.
#include "common.h"

EXPORT void read_rows(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, REAL* out,
    ptrdiff_t out_stride, const int64_t* addresses) {
    for (ptrdiff_t i = first; i < last; i++) {
        memcpy(out + i * out_stride, (const void*)addresses[i], (size_t)width * sizeof(REAL));
    }
}

EXPORT void write_rows(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const REAL* rows,
    ptrdiff_t rows_stride, const int64_t* addresses) {
    for (ptrdiff_t i = first; i < last; i++) {
        memcpy((void*)addresses[i], rows + i * rows_stride, (size_t)width * sizeof(REAL));
    }
}
