// Rows that lie anywhere, read and written by their addresses: kernels/attention/addresses.py.
//
// Block (columns, rows): 256 threads, as wide as a row needs. Grid (rows, columns) in blocks.

// out[n] = the row at addresses[n], for n < count; row n of out begins at out + n * out_stride.
extern "C" __global__ void read_rows(
    REAL* out, int out_stride, const long long* addresses, int count, int width) {
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    const int n = blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= count || column >= width) return;
    out[(long long)n * out_stride + column] = ((const REAL*)addresses[n])[column];
}

// The row at addresses[n] = rows[n].
extern "C" __global__ void write_rows(
    const REAL* rows, int rows_stride, const long long* addresses, int count, int width) {
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    const int n = blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= count || column >= width) return;
    ((REAL*)addresses[n])[column] = rows[(long long)n * rows_stride + column];
}
