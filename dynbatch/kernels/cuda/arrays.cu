// Filling, copying, repeating: the twin of kernels/arrays.py.
//
// Kernels over `count` elements: block 256, grid count / 1024.

extern "C" __global__ void fill(REAL* out, REAL number, long long count) {
    map_elements(out, count, [=](long long) { return number; });
}

extern "C" __global__ void copy(const REAL* x, REAL* out, long long count) {
    map_elements(out, count, [=](long long i) { return x[i]; });
}

extern "C" __global__ void copy_integers(const Place* x, REAL* out, long long count) {
    map_elements(out, count, [=](long long i) { return (REAL)x[i]; });
}

extern "C" __global__ void accumulate(const REAL* x, REAL* out, long long count) {
    map_elements(out, count, [=](long long i) { return out[i] + x[i]; });
}

// Calls body(row, column) for every element of a (count / width, width) matrix.
template <class Body>
__device__ __forceinline__ void over_matrix(unsigned width, long long count, Body body) {
    const long long begin = (long long)blockIdx.x * blockDim.x * EACH;
    const long long first = begin / width;  // the one division of 64 bits
    const unsigned before = begin - first * width;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const unsigned element = k * blockDim.x + threadIdx.x;
        if (begin + element < count)
            body(first + (before + element) / width, (before + element) % width);
    }
}

// Copies rows that lie source_stride elements apart to rows target_stride apart; a source_stride of
// 0 repeats a row. width < 2^31.
extern "C" __global__ void copy_rows(const REAL* source, REAL* target, long long source_stride,
                                     long long target_stride, unsigned width, long long count) {
    over_matrix(width, count, [=](long long row, unsigned column) {
        target[row * target_stride + column] = source[row * source_stride + column];
    });
}

extern "C" __global__ void add_bias(REAL* rows, const REAL* bias, unsigned width, long long count) {
    over_matrix(width, count, [=](long long row, unsigned column) {
        rows[row * width + column] += bias[column];
    });
}
