// Windows that slide over segments: the CUDA version of kernels/windows.py. Grids and blocks are
// those of `over_elements`: of the windows in a forward pass, of the rows in a gradient, which
// gathers from all windows that hold a row.

struct Windows {
    Segments rows, windows;
    int size, stride, padding;

    // First row of window m of segment k, counted from the segment's own; outside in the padding.
    __device__ __forceinline__ long long begin(int k, long long m) const {
        return (m - windows.start(k)) * stride - padding;
    }

    // Σ term(m, position) over the windows m that hold row n of segment k, there as `position`.
    template <class Term>
    __device__ __forceinline__ REAL gather(int k, long long n, Term term) const {
        const int row = n - rows.start(k) + padding,
                  count = windows.start(k + 1) - windows.start(k);
        const int first = row < size ? 0 : (row - size) / stride + 1;
        REAL sum = 0;
        for (int j = min(row / stride, count - 1); j >= first; --j)
            sum += term(windows.start(k) + j, row - j * stride);
        return sum;
    }
};

// out[m] = the rows of window m side by side, `width` elements in all; rows outside are zero.
extern "C" __global__ void unfold(const REAL* x, REAL* out, const int* windows, int most, int count,
    int width, long long total, const int* offsets, int length, int size, int stride, int padding) {
    const int features = width / size;
    const Windows all = {
        {offsets, length, count, features}, {windows, most, count, width}, size, stride, padding};
    over_elements(all.windows, total, [&](int k, long long m, int column, long long i) {
        const long long start = all.rows.start(k), row = all.begin(k, m) + column / features;
        const bool inside = row >= 0 && row < all.rows.start(k + 1) - start;
        out[i] = inside ? x[(start + row) * features + column % features] : (REAL)0;
    });
}

// out[n] = Σ of row n's copies in dy.
extern "C" __global__ void unfold_backward(const REAL* dy, REAL* out, const int* offsets,
    int length, int count, int width, long long total, const int* windows, int most, int size,
    int stride, int padding) {
    const Windows all = {
        {offsets, length, count, width}, {windows, most, count, width}, size, stride, padding};
    over_elements(all.rows, total, [&](int k, long long n, int column, long long i) {
        out[i] = all.gather(k, n,
            [&](long long m, int position) { return dy[(m * size + position) * width + column]; });
    });
}

// out[m] = the maximum of each column of window m; argmax[m] = its first position, if not NULL.
extern "C" __global__ void max_pool(const REAL* x, Index* argmax, REAL* out, const int* windows,
    int most, int count, int width, long long total, const int* offsets, int length, int size,
    int stride, int padding) {
    const Windows all = {
        {offsets, length, count, width}, {windows, most, count, width}, size, stride, padding};
    over_elements(all.windows, total, [&](int k, long long m, int column, long long i) {
        const REAL* from = x + (all.rows.start(k) + all.begin(k, m)) * width + column;
        REAL largest = from[0];
        int first = 0;
        for (int position = 1; position < size; ++position) {
            const REAL value = from[(long long)position * width];
            if (value > largest) first = position;
            largest = Max::combine(largest, value);
        }
        out[i] = largest;
        if (argmax) argmax[i] = first;
    });
}

// out[n] = Σ of dy over the windows whose maximum is in row n.
extern "C" __global__ void max_pool_backward(const REAL* dy, const Index* argmax, REAL* out,
    const int* offsets, int length, int count, int width, long long total, const int* windows,
    int most, int size, int stride, int padding) {
    const Windows all = {
        {offsets, length, count, width}, {windows, most, count, width}, size, stride, padding};
    over_elements(all.rows, total, [&](int k, long long n, int column, long long i) {
        out[i] = all.gather(k, n, [&](long long m, int position) {
            const long long at = m * width + column;
            return argmax[at] == position ? dy[at] : (REAL)0;
        });
    });
}

// out[m] = the mean of each column of window m.
extern "C" __global__ void mean_pool(const REAL* x, REAL* out, const int* windows, int most,
    int count, int width, long long total, const int* offsets, int length, int size, int stride,
    int padding) {
    const Windows all = {
        {offsets, length, count, width}, {windows, most, count, width}, size, stride, padding};
    over_elements(all.windows, total, [&](int k, long long m, int column, long long i) {
        const REAL* from = x + (all.rows.start(k) + all.begin(k, m)) * width + column;
        REAL sum = from[0];
        for (int position = 1; position < size; ++position)
            sum += from[(long long)position * width];
        out[i] = sum * ((REAL)1 / (REAL)size);
    });
}

// out[n] = Σ of dy / size over the windows that hold row n.
extern "C" __global__ void mean_pool_backward(const REAL* dy, REAL* out, const int* offsets,
    int length, int count, int width, long long total, const int* windows, int most, int size,
    int stride, int padding) {
    const Windows all = {
        {offsets, length, count, width}, {windows, most, count, width}, size, stride, padding};
    const REAL scale = (REAL)1 / (REAL)size;
    over_elements(all.rows, total, [&](int k, long long n, int column, long long i) {
        out[i] = all.gather(k, n, [&](long long m, int) { return dy[m * width + column] * scale; });
    });
}
