// What dot-product attention on tensor cores has in common, forward and backward, for float32 heads
// of up to 128 features, in multiples of 16. Not run on a card.
//
// Tables, grids and what is read are those of dot_product.cuh; a tile has 64 rows of its own side.
// Each of the block's four warps has 16 of them, and goes through the other side, TILE_ROWS rows at a
// time in shared memory:
//
//     warp 0   queries  0 … 15      Scores, weights and what they sum up stay in registers: as sums of
//       …                           one product they are left factors of the next one.
//     warp 3   queries 48 … 63
//
// Rows of shared memory are STRIDE apart, so that the lanes of a warp read different banks.
//
// Source: Dao 2023 (FlashAttention-2), arXiv:2307.08691: rows of a block divided among its warps.

constexpr int WARP_ROWS = 16, MMA_WARPS = 4, MMA_SIDE = WARP_ROWS * MMA_WARPS;
constexpr int TILE_ROWS = 32, MOST_COLUMNS = 128, STRIDE = MOST_COLUMNS + 4;
constexpr int PARTS = TILE_ROWS / 8, COLUMN_PARTS = MOST_COLUMNS / 8;

// What a lane has of a warp's 16 rows: columns 8 n + 2 t and 8 n + 2 t + 1 of rows g and g + 8.
typedef float Scores[PARTS][4];
typedef float Features[COLUMN_PARTS][4];
typedef float Tile[TILE_ROWS][STRIDE];

// Which rows and columns those are: element e of part n.
struct Lane {
    int g, t;

    __device__ __forceinline__ int row(int e) const { return g + e / 2 * 8; }
    __device__ __forceinline__ int column(int n, int e) const { return 8 * n + 2 * t + e % 2; }
};

__device__ __forceinline__ Lane lane_of_warp() {
    const int lane = threadIdx.x % WARP;
    return {lane / 4, lane % 4};
}

// Combines the numbers of a row, which four lanes have.
template <class Operation>
__device__ __forceinline__ REAL row_reduce(REAL value) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2)
        value = Operation::combine(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}

// Begins to bring `count` rows to a tile, zeros behind them.
__device__ __forceinline__ void begin_tile(Tile& tile, Input rows, int count) {
    const int fours = rows.width / 4;
    for (int k = threadIdx.x; k < TILE_ROWS * fours; k += blockDim.x) {
        const int n = k / fours, c = k % fours * 4;
        if (n < count) copy_later((float*)&tile[n][c], (const float*)(rows.row(n) + c));
        else *(float4*)&tile[n][c] = make_float4(0, 0, 0, 0);
    }
}

// sums = rows tileᵀ for 16 rows, of which `count` are there.
template <Precision P>
__device__ __forceinline__ void products_of_tile(
    Scores& sums, Input rows, int count, const Tile& tile) {
    const Lane lane = lane_of_warp();
#pragma unroll
    for (int n = 0; n < PARTS; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[n][e] = 0;
    for (int start = 0; start < rows.width; start += 16) {
        float part[2][4];
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                float2 pair = make_float2(0, 0);
                if (lane.row(e) < count)
                    pair = *(const float2*)(rows.row(lane.row(e)) + start + lane.column(h, e));
                part[h][e] = pair.x, part[h][e + 1] = pair.y;
            }
        const Left<P> left = left_factors<P>(part[0], part[1]);
#pragma unroll
        for (int n = 0; n < PARTS; ++n) {
            const float* own = &tile[8 * n + lane.g][start + 2 * lane.t];
            const float2 low = *(const float2*)own, high = *(const float2*)(own + 8);
            multiply_add<P>(sums[n], left, low.x, low.y, high.x, high.y);
        }
    }
}

// sums += weights tile, for `width` columns of the tile.
template <Precision P>
__device__ __forceinline__ void add_weighted(
    Features& sums, const Scores& weights, const Tile& tile, int width) {
    const Lane lane = lane_of_warp();
#pragma unroll
    for (int n = 0; n < PARTS; n += 2) {
        const Left<P> left = left_factors<P>(weights[n], weights[n + 1]);
#pragma unroll
        for (int part = 0; part < COLUMN_PARTS; ++part) {
            if (8 * part >= width) break;  // the same for the whole block
            const float* own = &tile[8 * n + 2 * lane.t][8 * part + lane.g];
            multiply_add<P>(
                sums[part], left, own[0], own[STRIDE], own[8 * STRIDE], own[9 * STRIDE]);
        }
    }
}

// The first `count` of 16 rows become sums, or have them added.
__device__ __forceinline__ void put_features(
    Output rows, int count, const Features& sums, bool add) {
    const Lane lane = lane_of_warp();
#pragma unroll
    for (int part = 0; part < COLUMN_PARTS; ++part) {
        if (8 * part >= rows.width) break;
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            if (lane.row(e) >= count) continue;
            float2* place = (float2*)(rows.row(lane.row(e)) + lane.column(part, e));
            float2 pair = make_float2(sums[part][e], sums[part][e + 1]);
            if (add) pair.x += place->x, pair.y += place->y;
            *place = pair;
        }
    }
}
