// What every kernel file starts with. The loader joins this text in front of each NAME.cu and
// defines REAL, the element type, as float or double. No #include: NVRTC has no system headers.

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ REAL infinity() { return (REAL)__int_as_float(0x7f800000); }

// A choice by a mask, and its gradients.
__device__ __forceinline__ REAL where_of(REAL m, REAL a, REAL b) { return m != 0 ? a : b; }
__device__ __forceinline__ REAL where_back_a(REAL dy, REAL m) { return m != 0 ? dy : (REAL)0; }
__device__ __forceinline__ REAL where_back_b(REAL dy, REAL m) { return m != 0 ? (REAL)0 : dy; }

// A factor of a product in BITS bits of mantissa: 23 are all of float's, 10 TF32's, 7 bfloat16's, which
// alone takes the even one of two numbers as near. See kernels/runtime/precision.py.
template <int BITS>
__device__ __forceinline__ REAL factor(REAL x) {
    if constexpr (BITS == 23) {
        return x;
    } else {
        constexpr int DROPPED = 23 - BITS;
        const unsigned bits = __float_as_int(x), is_odd = bits >> DROPPED & 1;
        const unsigned half = (1u << (DROPPED - 1)) - (BITS == 7 ? 1 - is_odd : 0);
        const bool is_finite = (~bits & 0x7f800000) != 0;
        return is_finite ? __int_as_float((bits + half) >> DROPPED << DROPPED) : x;
    }
}

// A number of which the upper half is kept, rounded.
struct Bfloat16 {
    unsigned short half;

    Bfloat16() = default;
    // `factor` leaves NaN as it is, whose upper half must be one, too.
    __device__ __forceinline__ explicit Bfloat16(REAL x)
        : half(__float_as_int(factor<7>(x)) >> 16 | (x != x ? 0x40 : 0)) {}
    __device__ __forceinline__ operator REAL() const {
        return __int_as_float((unsigned)half << 16);
    }
};

// Primitives of the functions of one element, which are printed as unary.cuh; a NaN stays one.

// 1 / (1 + exp(-x)) without overflow; it keeps small values, and takes no more registers.
__device__ __forceinline__ REAL sigmoid(REAL x) {
    const REAL e = exp(-fabs(x));
    return (x < 0 ? e : (REAL)1) / (1 + e);
}

__device__ __forceinline__ REAL sign(REAL x) { return x > 0 ? (REAL)1 : x < 0 ? (REAL)-1 : x; }
__device__ __forceinline__ REAL at_least(REAL x, REAL low) { return x < low ? low : x; }
__device__ __forceinline__ REAL at_most(REAL x, REAL high) { return x > high ? high : x; }
__device__ __forceinline__ REAL clip(REAL x, REAL low, REAL high) {
    return at_most(at_least(x, low), high);
}

// A root is NaN of -infinity, as in NumPy and PyTorch; pow is not.
__device__ __forceinline__ REAL power(REAL x, REAL exponent) {
    return exponent == (REAL)0.5 ? sqrt(x) : pow(x, exponent);
}

__device__ __forceinline__ REAL hypot1(REAL x) { return hypot(x, (REAL)1); }

// exp(-x^2 / 2); fma gives what the square was rounded by, which far out is worth many places.
__device__ __forceinline__ REAL exp_of_half_square(REAL x) {
    const REAL near = clip(x, -40, 40), square = near * near;
    return exp((REAL)-0.5 * square) * (1 - (REAL)0.5 * fma(near, near, -square));
}

// exp(-x^2).
__device__ __forceinline__ REAL gauss(REAL x) {
    const REAL near = clip(x, -40, 40), square = near * near;
    return exp(-square) * (1 - fma(near, near, -square));
}

// The probability of less than x, from `density`, which is exp(-x^2 / 2).
__device__ __forceinline__ REAL normal_distribution(REAL x, REAL density) {
    const REAL above = (REAL)0.5 * erfcx(fabs(x) * (REAL)0.70710678118654752) * density;
    return x > 0 ? 1 - above : above;
}

// Source: Wellons 2018, lowbias32, as in kernels/dropout.py.
__device__ __forceinline__ unsigned hash32(unsigned value) {
    value = (value ^ value >> 16) * 0x7feb352du;
    value = (value ^ value >> 15) * 0x846ca68bu;
    return value ^ value >> 16;
}

// The bits of element `number` of a random stream.
__device__ __forceinline__ unsigned random_bits(unsigned number, unsigned stream) {
    return hash32(hash32(number) ^ stream);
}

// Index helpers. Element offsets are long long: an arena may hold more than 2^31 elements.

__device__ __forceinline__ long long thread_in_grid() {
    return (long long)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ long long threads_in_grid() { return (long long)gridDim.x * blockDim.x; }

// out[i] = value(i) for every i < count, EACH elements to a thread: grid count / (EACH *
// blockDim.x). A thread reads all before it writes any, so that its reads are under way together;
// value(i) may read out[i].
constexpr int EACH = 4;

template <class Value>
__device__ __forceinline__ void map_elements(REAL* out, long long count, Value value) {
    const long long first = (long long)blockIdx.x * blockDim.x * EACH + threadIdx.x;
    REAL results[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const long long i = first + k * blockDim.x;
        if (i < count) results[k] = value(i);
    }
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const long long i = first + k * blockDim.x;
        if (i < count) out[i] = results[k];
    }
}

// The k in [low, high) with starts[k * step] <= position < starts[(k + 1) * step]. `starts` does
// not decrease and begins at or before `position`; of equal starts the last is meant, so that empty
// entries are passed over.
template <class Start>
__device__ __forceinline__ int find_segment(
    const Start* starts, int step, int low, int high, long long position) {
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

// Like np.minimum: a NaN wins.
struct Min {
    static __device__ __forceinline__ REAL identity() { return infinity(); }
    static __device__ __forceinline__ REAL combine(REAL a, REAL b) {
        return a < b || a != a ? a : b;
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
