// Rows that lie anywhere, read and written by their addresses: kernels/attention/addresses.py. Where
// `is_short`, they are of bfloat16.
//
// Block (columns, rows): 256 threads, as wide as a row needs. Grid (rows, columns) in blocks.

// out[n] = the row at addresses[n], for n < count; row n of out begins at out + n * out_stride.
extern "C" __global__ void read_rows(
    REAL* out, int out_stride, const long long* addresses, int count, int width, bool is_short) {
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    const int n = blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= count || column >= width) return;
    out[(long long)n * out_stride + column] =
        is_short ? ((const Bfloat16*)addresses[n])[column] : ((const REAL*)addresses[n])[column];
}

// The row at addresses[n] = rows[n].
extern "C" __global__ void write_rows(const REAL* rows, int rows_stride, const long long* addresses,
    int count, int width, bool is_short) {
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    const int n = blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= count || column >= width) return;
    const REAL x = rows[(long long)n * rows_stride + column];
    if (is_short) ((Bfloat16*)addresses[n])[column] = Bfloat16(x);
    else ((REAL*)addresses[n])[column] = x;
}
