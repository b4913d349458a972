// What every kernel file starts with. The loader joins this text in front of each NAME.cu and
// defines REAL, the element type, as float or double. No #include: NVRTC has no system headers.

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ REAL infinity() { return (REAL)__int_as_float(0x7f800000); }

// Index helpers. Element offsets are long long: an arena may hold more than 2^31 elements.

__device__ __forceinline__ long long thread_in_grid() {
    return (long long)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ long long threads_in_grid() {
    return (long long)gridDim.x * blockDim.x;
}

// The k in [low, high) with starts[k * step] <= position < starts[(k + 1) * step]. `starts` does not
// decrease and begins at or before `position`; of equal starts the last is meant, so that empty
// entries are passed over.
__device__ __forceinline__ int find_segment(const long long* starts, int step, int low, int high,
                                            long long position) {
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (starts[(long long)middle * step] <= position) low = middle;
        else high = middle;
    }
    return low;
}

// Reductions. An operation is a type with `identity()` and `combine(a, b)`. The order in which
// values are combined depends on the number of threads only, so two runs give the same bits.

struct Add {
    static __device__ __forceinline__ REAL identity() { return (REAL)0; }
    static __device__ __forceinline__ REAL combine(REAL a, REAL b) { return a + b; }
};

// Like np.maximum: a NaN wins.
struct Max {
    static __device__ __forceinline__ REAL identity() { return -infinity(); }
    static __device__ __forceinline__ REAL combine(REAL a, REAL b) {
        return a > b || a != a ? a : b;
    }
};

// All 32 lanes of the warp must call; all get the result.
template <class Operation>
__device__ __forceinline__ REAL warp_reduce(REAL value) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value = Operation::combine(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}

// All threads of a one-dimensional block of whole warps must call; all get the result.
// `partial` is shared memory for one value a warp, and may be used again at once.
template <class Operation>
__device__ __forceinline__ REAL block_reduce(REAL value, REAL* partial) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    value = warp_reduce<Operation>(value);
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    value = warp_reduce<Operation>(lane < warps ? partial[lane] : Operation::identity());
    __syncthreads();  // all have read before a caller writes `partial` again
    return value;
}
