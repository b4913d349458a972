// Sums of rows of several arrays, by tables: the CUDA version of kernels/gathers.py, for several
// tables at once.

// Into several arrays, for row r = steps[3 t] + n of each, n < steps[3 t + 1]:
//
//     out[r] (+)= Σ source(of[m])[rows[m]],  starts[r] <= m < starts[r + 1]
//
// `tables` has FIELDS numbers for each array:
//
//     first_tile  width  out  stride  count  rows  of  starts  sources  adds
//
// `out` counts elements from `base`; the array has `count` rows, so many elements apart. Its tables
// lie in `terms` from `rows`, `of` and `starts` on, where -1 stands for rows[m] = m, for terms that
// are all of the first source, and for one term each; of[m] < 0 is a term that is zeros. Two numbers
// for each source lie in `tables` from `sources` on: its distance from `base`, and the elements from
// row to row. Where `adds`, sums are added to what is there. Columns are in tiles of WARP; those of
// array k are the tiles from its first_tile on. No order but that of a row's own terms is in a sum.
//
// Block 256: a warp sums a row of a few terms, a column a lane; the 8 warps share a row of many, of
// which warp w takes every 8th term. Grid (rows / 8) * tiles.
constexpr int FIELDS = 10;

extern "C" __global__ void sum_terms(REAL* base, const long long* tables, const int* terms,
    const int* steps, int count, int tiles, int t) {
    constexpr int WARPS = 8, LONG = 32;
    __shared__ REAL partial[WARPS][WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int tile = blockIdx.x % tiles, first = blockIdx.x / tiles * WARPS;
    const long long* table =
        tables + (long long)find_segment(tables, FIELDS, 0, count, tile) * FIELDS;
    const int column = (int)(tile - table[0]) * WARP + lane;
    const bool inside = column < table[1];
    const long long begin = steps[3 * t];
    const int n = (int)min((long long)steps[3 * t + 1], table[4] - begin);
    const int* rows = table[5] < 0 ? nullptr : terms + table[5];
    const int* of = table[6] < 0 ? nullptr : terms + table[6];
    const int* starts = table[7] < 0 ? nullptr : terms + table[7];
    const long long* sources = tables + table[8];

    auto sum = [&](long long low, long long high, int step) {
        REAL total = 0;
        for (long long m = low; inside && m < high; m += step) {
            const int from = of ? of[m] : 0;
            if (from < 0) continue;
            const long long row = rows ? rows[m] : m;
            total += base[sources[2 * from] + row * sources[2 * from + 1] + column];
        }
        return total;
    };
    auto store = [&](long long r, REAL total) {
        REAL* to = base + table[2] + r * table[3] + column;
        if (inside) *to = table[9] ? *to + total : total;
    };

    if (first + warp < n) {
        const long long r = begin + first + warp;
        const long long low = starts ? starts[r] : r, high = starts ? starts[r + 1] : r + 1;
        if (high - low <= LONG) store(r, sum(low, high, 1));
    }
    if (!starts) return;  // the whole block
    for (int k = first; k < first + WARPS && k < n; ++k) {
        const long long r = begin + k;
        const int low = starts[r], high = starts[r + 1];
        if (high - low <= LONG) continue;  // the same for the whole block
        partial[warp][lane] = sum(low + warp, high, WARPS);
        __syncthreads();
        if (warp == 0) {
            REAL total = partial[0][lane];
            for (int w = 1; w < WARPS; ++w) total += partial[w][lane];
            store(r, total);
        }
        __syncthreads();  // the next long row writes `partial` again
    }
}
