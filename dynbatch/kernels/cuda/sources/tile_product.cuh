// A tile of a product of few rows, for kernels that go on with its elements in the same block.
//
// A block of TILE_THREADS threads makes TILE_ROWS x TILE_COLUMNS sums. Both factors come to shared
// memory a stretch of their common length at a time. Two warps, one for each half of the rows,
// multiply a part of each stretch, VECTOR of its places at once: a thread has 2 x 4 sums,
//
//     rows lane / 8 + 4 i of the half, columns lane % 8 + 8 j
//
// and the TEAMS of warps' sums are added in order at the end. So the order of a sum depends on its
// length only. Factors are rounded to FACTOR_BITS, where a text defines it before.

#ifndef FACTOR_BITS
#define FACTOR_BITS 23
#endif
constexpr int TILE_THREADS = 512, TILE_ROWS = 16, TILE_COLUMNS = 32, TEAMS = 8;
constexpr int VECTOR = 16 / sizeof(REAL);
constexpr int STRETCH = 512 / sizeof(REAL), APART = STRETCH + VECTOR;  // no two rows in one bank
constexpr int SUMS_APART = TILE_COLUMNS + 8;
constexpr int FACTORS = (TILE_ROWS + TILE_COLUMNS) * APART, SUMS = TEAMS * TILE_ROWS * SUMS_APART;
constexpr int TILE_SHARED = FACTORS > SUMS ? FACTORS : SUMS;

// What one load of shared memory brings.
struct __align__(16) Places {
    REAL of[VECTOR];
};

__device__ __forceinline__ Places places(const REAL* first) { return *(const Places*)first; }

// The sums of one thread.
struct TileSums {
    REAL of[2][4];

    static __device__ __forceinline__ int team() { return threadIdx.x / (2 * WARP); }
    static __device__ __forceinline__ int row(int i) {
        return threadIdx.x / WARP % 2 * (TILE_ROWS / 2) + threadIdx.x % WARP / 8 + 4 * i;
    }
    static __device__ __forceinline__ int column(int j) { return threadIdx.x % 8 + 8 * j; }
};

// sums += the sum over k < depth of x(r)[k] w(c)[k * STEP], for rows r and columns c of the tile.
// Rows from `rows` on, and columns whose w(c) is NULL, are zeros. ALONG says that a column's
// numbers lie side by side; else those of the columns do. All threads must call; they have met when
// it returns, and `shared`, TILE_SHARED numbers, may be used again.
template <bool ALONG, int STEP, class X, class W>
__device__ __forceinline__ void multiply_tile(
    TileSums& sums, REAL* shared, int depth, int rows, X x, W w) {
    constexpr int EACH_X = TILE_ROWS * STRETCH / TILE_THREADS;
    constexpr int EACH_W = TILE_COLUMNS * STRETCH / TILE_THREADS;
    __shared__ const REAL* heads[TILE_ROWS + TILE_COLUMNS];  // kept here, they take no registers
    const int place = threadIdx.x % STRETCH, line = threadIdx.x / STRETCH;
    REAL *const xs = shared, *const ws = shared + TILE_ROWS * APART;
    if (depth > 0 && threadIdx.x < TILE_ROWS)
        heads[threadIdx.x] = threadIdx.x < rows ? x(threadIdx.x) : nullptr;
    else if (depth > 0 && threadIdx.x < TILE_ROWS + TILE_COLUMNS)
        heads[threadIdx.x] = w(threadIdx.x - TILE_ROWS);
    __syncthreads();
#pragma unroll 1  // more of them at once would take too many registers; so below
    for (int first = 0; first < depth; first += STRETCH) {
        const int count = min(STRETCH, depth - first);
        const int padded = (count + VECTOR - 1) / VECTOR * VECTOR;
        REAL of_x[EACH_X], of_w[EACH_W];
#pragma unroll
        for (int i = 0; i < EACH_X; ++i) {
            const REAL* row = heads[line + i * (TILE_THREADS / STRETCH)];
            of_x[i] = row && place < count ? row[first + place] : (REAL)0;
        }
#pragma unroll
        for (int i = 0; i < EACH_W; ++i) {
            const int number = threadIdx.x + i * TILE_THREADS;
            const int c = ALONG ? line + i * (TILE_THREADS / STRETCH) : threadIdx.x % TILE_COLUMNS;
            const int k = ALONG ? place : number / TILE_COLUMNS;
            const REAL* column = heads[TILE_ROWS + c];
            of_w[i] = column && k < count ? (column + (long long)first * STEP)[k * STEP] : (REAL)0;
        }
#pragma unroll
        for (int i = 0; i < EACH_X; ++i) {
            const int r = line + i * (TILE_THREADS / STRETCH);
            if (place < padded) xs[r * APART + place] = factor<FACTOR_BITS>(of_x[i]);
        }
#pragma unroll
        for (int i = 0; i < EACH_W; ++i) {
            const int number = threadIdx.x + i * TILE_THREADS;
            const int c = ALONG ? line + i * (TILE_THREADS / STRETCH) : threadIdx.x % TILE_COLUMNS;
            const int k = ALONG ? place : number / TILE_COLUMNS;
            if (k < padded) ws[c * APART + k] = factor<FACTOR_BITS>(of_w[i]);
        }
        __syncthreads();
#pragma unroll 1
        for (int k = sums.team() * VECTOR; k < padded; k += TEAMS * VECTOR) {
            const Places left[2] = {
                places(xs + sums.row(0) * APART + k), places(xs + sums.row(1) * APART + k)};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const Places right = places(ws + sums.column(j) * APART + k);
#pragma unroll
                for (int i = 0; i < 2; ++i)
#pragma unroll
                    for (int v = 0; v < VECTOR; ++v)
                        if (sums.row(i) < rows) sums.of[i][j] += left[i].of[v] * right.of[v];
            }
        }
        __syncthreads();  // all have read before the next stretch comes, or the sums
    }
}

// Puts the sums of all teams into shared memory, where `tile_sum` adds them. All threads must call.
__device__ __forceinline__ void share_tile(const TileSums& sums, REAL* shared) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int row = sums.team() * TILE_ROWS + sums.row(i);
            shared[row * SUMS_APART + sums.column(j)] = sums.of[i][j];
        }
    __syncthreads();
}

// The sum of row r and column c of the tile.
__device__ __forceinline__ REAL tile_sum(const REAL* shared, int r, int c) {
    REAL sum = shared[r * SUMS_APART + c];
#pragma unroll
    for (int team = 1; team < TEAMS; ++team) sum += shared[(team * TILE_ROWS + r) * SUMS_APART + c];
    return sum;
}
