// Norms and clipping of all gradients of a type in one launch each. A table row for each gradient:
//
//     first  start  size
//
// `first` counts the chunks, of CHUNK elements at most, of the gradients before; `start` is in
// elements from `base`. Every kernel but `norm_of`: a block a chunk, 256 threads.
enum { FIRST, START, SIZE, ENTRY };
constexpr int CHUNK = 4096;

template <class Body>
__device__ __forceinline__ void over_chunk(const long long* entries, int count, Body body) {
    const long long* p =
        entries + find_segment(entries, ENTRY, 0, count, blockIdx.x) * (long long)ENTRY;
    const long long begin = (blockIdx.x - p[FIRST]) * CHUNK, end = min(begin + CHUNK, p[SIZE]);
    for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) body(p[START] + i);
}

// Sum over the block, in thread 0; once a kernel. The order depends on the number of threads only.
__device__ __forceinline__ double block_sum(double value) {
    __shared__ double partial[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    auto warp_sum = [](double x) {
#pragma unroll
        for (int distance = WARP / 2; distance > 0; distance /= 2)
            x += __shfl_xor_sync(ALL_LANES, x, distance);
        return x;
    };
    value = warp_sum(value);
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    return warp_sum(lane < warps ? partial[lane] : 0.0);
}

// partials[b] = Σ x² over chunk b, in double: the squares of floats do not overflow.
extern "C" __global__ void sum_squares(
    const REAL* base, const long long* entries, double* partials, int count) {
    double total = 0;
    over_chunk(entries, count, [&](long long i) { total += (double)base[i] * base[i]; });
    total = block_sum(total);
    if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

// partials[b] = Σ x over chunk b.
extern "C" __global__ void sums(
    const REAL* base, const long long* entries, double* partials, int count) {
    double total = 0;
    over_chunk(entries, count, [&](long long i) { total += base[i]; });
    total = block_sum(total);
    if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

// norm[0] = √Σ partials. One block of 1024.
extern "C" __global__ void norm_of(const double* partials, double* norm, int count) {
    double total = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) total += partials[i];
    total = block_sum(total);
    if (threadIdx.x == 0) norm[0] = sqrt(total);
}

// x ← x · min(1, max_norm / (norm + 1e-6)); x stays where the norm is not finite.
extern "C" __global__ void scale_to_norm(
    REAL* base, const long long* entries, const double* norm, double max_norm, int count) {
    const double scale = max_norm / (*norm + 1e-6);
    if (!(*norm < infinity()) || !(scale < 1)) return;
    over_chunk(entries, count, [&](long long i) { base[i] *= (REAL)scale; });
}

// x ← x clipped to [-limit, limit]; NaN stays NaN.
extern "C" __global__ void clip_values(
    REAL* base, const long long* entries, REAL limit, int count) {
    over_chunk(entries, count, [&](long long i) {
        const REAL x = base[i];
        if (x > limit) base[i] = limit;
        if (x < -limit) base[i] = -limit;
    });
}
