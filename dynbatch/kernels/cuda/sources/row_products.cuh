// The products of a tail: one row, by the whole block.
#ifndef FACTOR_BITS
#define FACTOR_BITS 23
#endif
constexpr int THREADS_OF_TAIL = 512, OUTPUTS_OF_WARP = 4, PARTS = 4;

// out[o] = Σ_k x[k] W[o, k] + bias[o], for W (O, K); zeros for x where it is NULL. A warp makes
// OUTPUTS_OF_WARP outputs, its lanes along k.
__device__ __forceinline__ void multiply_row(
    const REAL* x, const REAL* weight, int K, int O, const REAL* bias, REAL* out) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, inner = x ? K : 0;
    for (int o = warp * OUTPUTS_OF_WARP; o < O; o += THREADS_OF_TAIL / WARP * OUTPUTS_OF_WARP) {
        REAL sum[OUTPUTS_OF_WARP] = {};
#pragma unroll 4  // a block has a multiprocessor to itself: many loads must be under way
        for (int k = lane; k < inner; k += WARP) {
            const REAL of_x = factor<FACTOR_BITS>(x[k]);
#pragma unroll
            for (int i = 0; i < OUTPUTS_OF_WARP; ++i) {
                const long long at = (long long)min(o + i, O - 1) * K + k;
                sum[i] += of_x * factor<FACTOR_BITS>(weight[at]);
            }
        }
#pragma unroll
        for (int i = 0; i < OUTPUTS_OF_WARP; ++i) {
            const REAL total = warp_reduce<Add>(sum[i]);
            if (lane == 0 && o + i < O) out[o + i] = bias ? total + bias[o + i] : total;
        }
    }
}

// out[k] = base[k] + Σ_o dy[o] W[o, k], or the sum alone where `base` is NULL. Threads go along k;
// where K leaves room for several teams, each takes a part of the o, in PARTS sums, and these and
// theirs are added in order. `partial` has a place for each thread. At the end the block has met.
__device__ __forceinline__ void multiply_back(
    const REAL* dy, const REAL* weight, int K, int O, const REAL* base, REAL* out, REAL* partial) {
    const int wide = K < THREADS_OF_TAIL ? K : THREADS_OF_TAIL, teams = THREADS_OF_TAIL / wide;
    const int team = threadIdx.x / wide, column = threadIdx.x % wide;
    for (int first = 0; first < K; first += wide) {
        const int k = first + column;
        REAL sums[PARTS] = {};
        if (team < teams && k < K)
#pragma unroll 2  // as many loads under way as above
            for (int o = team; o < O; o += PARTS * teams) {
#pragma unroll
                for (int i = 0; i < PARTS; ++i) {
                    const int at = o + i * teams, row = min(at, O - 1);
                    const REAL of_dy = at < O ? factor<FACTOR_BITS>(dy[row]) : (REAL)0;
                    sums[i] += of_dy * factor<FACTOR_BITS>(weight[(long long)row * K + k]);
                }
            }
        REAL sum = sums[0];
#pragma unroll
        for (int i = 1; i < PARTS; ++i) sum += sums[i];
        partial[threadIdx.x] = sum;
        __syncthreads();
        if (team == 0 && k < K) {
            for (int other = 1; other < teams; ++other) sum += partial[other * wide + column];
            out[k] = base ? base[k] + sum : sum;
        }
        __syncthreads();  // `base` is read, and `partial` written again
    }
}
