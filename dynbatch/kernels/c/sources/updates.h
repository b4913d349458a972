// Loops over the rows of a parameter; printed code has the step of its elements.

// The step of elements start, …, start + n - 1 of arrays, which are the value and slots; NULL is a
// slot that does not exist. `gradient` is that of the first.
typedef void step(
    ptrdiff_t start, ptrdiff_t n, const REAL* gradient, REAL* const* arrays, const double* numbers);

// The gradient of rows that have none: they go through the same code, and so get the same bits.
#define ZEROS 1024
static const REAL no_gradient[ZEROS];

// A step of one parameter, of its units first, …, last - 1: elements of a dense gradient, where
// `rows` is NULL; with `every_row` rows of the parameter, else those of a sparse gradient, which
// increase.
static void over_units(step* apply, const double* numbers, ptrdiff_t first, ptrdiff_t last,
    const REAL* gradient, const int64_t* rows, ptrdiff_t num_rows, ptrdiff_t width, int every_row,
    REAL* const* arrays) {
    if (!rows) {
        apply(first, last - first, gradient + first, arrays, numbers);
    } else if (!every_row) {
        for (ptrdiff_t n = first; n < last; n++)
            apply(rows[n] * width, width, gradient + n * width, arrays, numbers);
    } else {
        ptrdiff_t n = 0, row = first;
        while (n < num_rows && rows[n] < first) n++;
        while (row < last) {
            ptrdiff_t given = n < num_rows ? least(rows[n], last) : last, end = given * width;
            for (ptrdiff_t i = row * width; i < end; i += ZEROS)
                apply(i, least(ZEROS, end - i), no_gradient, arrays, numbers);
            if (given < last) apply(end, width, gradient + n++ * width, arrays, numbers);
            row = given + 1;
        }
    }
}
