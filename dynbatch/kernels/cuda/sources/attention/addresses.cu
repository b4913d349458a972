// Rows that lie anywhere, read and written by their addresses: kernels/attention/addresses.py.
//
// Block (columns, rows): 256 threads, as wide as a row needs. Grid (rows, columns) in blocks.

// out[n] = the row at addresses[n], for n < rows; row n of out begins at out + n * stride.
extern "C" __global__ void read_rows(
    REAL* out, int stride, const long long* addresses, int rows, int width) {
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    const int n = blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= rows || column >= width) return;
    out[(long long)n * stride + column] = ((const REAL*)addresses[n])[column];
}

// The row at addresses[n] = from[n].
extern "C" __global__ void write_rows(
    const REAL* from, int stride, const long long* addresses, int rows, int width) {
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    const int n = blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= rows || column >= width) return;
    ((REAL*)addresses[n])[column] = from[(long long)n * stride + column];
}
