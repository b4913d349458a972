// Steps of a scan whose sentences attend to one memory.
#include "attention/rows.h"

// What the steps of one call share. Step t of these has the first n sentences; its weights begin at
// pairs[t], its rows at rows[t] in what backward leaves for the end.
typedef struct {
    const int64_t *queries, *offsets;  // where each sentence's query, and where its keys begin
    const int64_t *pairs, *rows;
    const REAL *scorer, *keys, *values;  // the vector of additive scores, or the scale of others
    int64_t width, value_width;
    REAL* weights;                    // of all steps, which forward leaves
    REAL *dkeys, *dvector, *scratch;  // are added to; and room for the largest sentence
    REAL *slopes, *seen, *gradients;  // of the scores, and copies of queries and of dout; or NULL
} shared_by_steps;

static void copy_rows(
    ptrdiff_t n, ptrdiff_t width, const REAL* rows, ptrdiff_t stride, REAL* copies) {
    for (ptrdiff_t i = 0; i < n; i++)
        memcpy(copies + i * width, rows + i * stride, (size_t)width * sizeof(REAL));
}
