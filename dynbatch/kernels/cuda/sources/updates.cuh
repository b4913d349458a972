// Steps of all parameters of a type in one launch: printed code has the step of each element.
//
// A table row for each parameter, `numbers` of its step beside it. Places are in elements from
// `base`, the first parameter's value; 0 is a slot that does not exist:
//
//     first  gradient  width  first_row  num_rows  every_row  value  slots...
//
// `first` counts the elements of the parameters before. A gradient that is dense has width 0. One
// of some rows has them in `rows` from first_row on, increasing; then the elements gone through are
// those of the rows given, or, if every_row, all of the parameter's: the gradient of the other rows
// is 0.
//
// All kernels: block 256, grid total / TILE; they go through all elements of all parameters, TILE
// to a block, as in move.cu. `norm` is NULL, or a number that must be finite: nothing is done if
// not.

enum { FIRST, GRADIENT, WIDTH, FIRST_ROW, NUM_ROWS, EVERY_ROW, ARRAYS };

// step(gradient, arrays, numbers) of each element; the arrays are those of the value and slots.
template <int COUNT, class Step>
__device__ __forceinline__ void over_parameters(REAL* base, const long long* entries,
    const int* rows, const REAL* numbers, int num_numbers, const double* norm, int count,
    long long total, Step step) {
    if (norm && !(*norm < infinity())) return;
    constexpr int ENTRY = ARRAYS + COUNT;
    const long long begin = (long long)blockIdx.x * TILE, end = min(begin + TILE, total);
    const int low = find_segment(entries, ENTRY, 0, count, begin);
    const int high = find_segment(entries, ENTRY, low, count, end - 1) + 1;
    for (long long e = begin + threadIdx.x; e < end; e += blockDim.x) {
        const int k = find_segment(entries, ENTRY, low, high, e);
        const long long* p = entries + (long long)k * ENTRY;
        const REAL* gradients = base + p[GRADIENT];
        const unsigned i = (unsigned)(e - p[FIRST]), width = (unsigned)p[WIDTH];
        long long at = i;
        REAL gradient = 0;
        if (width == 0) {
            gradient = gradients[i];
        } else {
            const unsigned row = i / width, column = i % width;
            const int* given = rows + p[FIRST_ROW];
            if (!p[EVERY_ROW]) {
                gradient = gradients[i];
                at = (long long)given[row] * width + column;
            } else if (p[NUM_ROWS]) {
                const int n = find_segment(given, 1, 0, (int)p[NUM_ROWS], row);
                if (given[n] == (int)row) gradient = gradients[(long long)n * width + column];
            }
        }
        REAL* arrays[COUNT];
#pragma unroll
        for (int a = 0; a < COUNT; a++)
            arrays[a] = a == 0 || p[ARRAYS + a] ? base + p[ARRAYS + a] + at : nullptr;
        step(gradient, arrays, numbers + (long long)k * num_numbers);
    }
}
