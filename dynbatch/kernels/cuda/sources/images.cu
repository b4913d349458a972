// Patches of images of different sizes: the CUDA version of kernels/images.py. Grids and blocks are
// those of `over_elements`, of the rows that are written.

struct Patches {
    Segments rows;  // of each image, among those that are written
    const int*
        images;      // for each: its first row, height, width; patches across, and before the rows
    const int* how;  // kernel, step, offset, dilation, divisor: of the height, of the width

    static constexpr int ENTRIES = 5, STEP = 2, OFFSET = 4, DILATION = 6, DIVISOR = 8;

    __device__ __forceinline__ int positions() const { return how[0] * how[1]; }

    // A height, or a width (axis 1), where patch `at` has its position `i`; -1 outside of `size`.
    __device__ __forceinline__ int place(int axis, int at, int i, int size) const {
        const int number = at * how[STEP + axis] + how[OFFSET + axis] + i * how[DILATION + axis];
        const int divisor = how[DIVISOR + axis];
        if (number < 0 || number % divisor) return -1;
        return number / divisor < size ? number / divisor : -1;
    }

    // Calls body(position, row) for the positions of patch n, in image k, that have a row.
    template <class Body>
    __device__ __forceinline__ void each(int k, long long n, Body body) const {
        const int* image = images + ENTRIES * k;
        const int patch = n - rows.start(k) + image[4];
        const int y = patch / image[3], x = patch % image[3];
        for (int i = 0; i < how[0]; ++i) {
            const int line = place(0, y, i, image[1]);
            if (line < 0) continue;
            for (int j = 0; j < how[1]; ++j) {
                const int column = place(1, x, j, image[2]);
                if (column >= 0)
                    body(i * how[1] + j, image[0] + (long long)line * image[2] + column);
            }
        }
    }

    // The row of one position; -1 if it has none.
    __device__ __forceinline__ long long row(int k, long long n, int position) const {
        const int* image = images + ENTRIES * k;
        const int patch = n - rows.start(k) + image[4];
        const int line = place(0, patch / image[3], position / how[1], image[1]);
        const int column = place(1, patch % image[3], position % how[1], image[2]);
        return line < 0 || column < 0 ? -1 : image[0] + (long long)line * image[2] + column;
    }
};

// out[m] = the rows of patch m side by side, `width` elements in all; zeros where there is none. Of
// each group of columns those of all positions stand together.
extern "C" __global__ void unfold_patches(const REAL* x, REAL* out, const int* offsets, int length,
    int count, int width, long long total, const int* images, const int* how, int groups) {
    const Patches patches = {{offsets, length, count, width}, images, how};
    const int positions = patches.positions(), features = width / positions;
    const int part = features / groups;
    over_elements(patches.rows, total, [&](int k, long long m, int column, long long i) {
        const int across = column / part, group = across / positions;
        const long long row = patches.row(k, m, across % positions);
        out[i] = row < 0 ? (REAL)0 : x[row * features + group * part + column % part];
    });
}

// out[m] = factor · the sum of the rows of patch m.
extern "C" __global__ void sum_patches(const REAL* x, REAL* out, const int* offsets, int length,
    int count, int width, long long total, const int* images, const int* how, REAL factor) {
    const Patches patches = {{offsets, length, count, width}, images, how};
    over_elements(patches.rows, total, [&](int k, long long m, int column, long long i) {
        REAL sum = 0;
        patches.each(k, m, [&](int, long long row) { sum += x[row * width + column]; });
        out[i] = factor * sum;
    });
}

// out[m] = the maximum of each column of patch m; argmax[m] = its first position, if not NULL.
extern "C" __global__ void max_patches(const REAL* x, Index* argmax, REAL* out, const int* offsets,
    int length, int count, int width, long long total, const int* images, const int* how) {
    const Patches patches = {{offsets, length, count, width}, images, how};
    over_elements(patches.rows, total, [&](int k, long long m, int column, long long i) {
        REAL largest = -infinity();
        int first = -1;
        patches.each(k, m, [&](int position, long long row) {
            const REAL value = x[row * width + column];
            // The first NaN is the maximum.
            if (first < 0 || (!(value <= largest) && largest == largest)) first = position;
            largest = Max::combine(largest, value);
        });
        out[i] = largest;
        if (argmax) argmax[i] = first;
    });
}

// out[n] = Σ of dy over the patches whose maximum is in row n.
extern "C" __global__ void max_patches_backward(const REAL* dy, const Index* argmax, REAL* out,
    const int* offsets, int length, int count, int width, long long total, const int* images,
    const int* how) {
    const Patches patches = {{offsets, length, count, width}, images, how};
    over_elements(patches.rows, total, [&](int k, long long n, int column, long long i) {
        REAL sum = 0;
        patches.each(k, n, [&](int position, long long row) {
            const long long at = row * width + column;
            if (argmax[at] == position) sum += dy[at];
        });
        out[i] = sum;
    });
}
