// Rows on their way into a scan's order and out of it. Matrices are parts of wider ones: row i of x
// begins at x + i * x_stride.

// target[i] = source[index[i]] where index[i] >= 0, else other[-1 - index[i]], or 0 without `other`.
//
// Block (columns, rows): 256 threads, as wide as a row needs. Grid (rows, columns) in blocks.
extern "C" __global__ void pick_rows(const REAL* source, int source_stride, const REAL* other,
                                     int other_stride, const int* index, REAL* target,
                                     int target_stride, int rows, int width) {
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    const int n = blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= rows || column >= width) return;
    const int from = index[n];
    const REAL* place = from >= 0 ? source + (long long)from * source_stride
                        : other   ? other + (long long)(-1 - from) * other_stride
                                  : nullptr;
    target[(long long)n * target_stride + column] = place ? place[column] : (REAL)0;
}

// target[n] = source[n], or target[n] += source[n] if `add`. Block and grid as above.
extern "C" __global__ void move_columns(const REAL* source, int source_stride, REAL* target,
                                        int target_stride, int rows, int width, int add) {
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    const int n = blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= rows || column >= width) return;
    const REAL value = source[(long long)n * source_stride + column];
    REAL* to = target + (long long)n * target_stride + column;
    *to = add ? *to + value : value;
}
