// Dot-product attention: CUDA versions of kernels/attention/dot_product.py and of the dot-product
// kernels of kernels/attention/single_query.py. Tables, grids and blocks are those of the header.

#include "dot_product.cuh"
#include "dot_product_tiles.cuh"

// Up to 32 queries of a sentence.
template <bool EXTENDED, class Source>
__device__ __forceinline__ void attend(const Work& work, const Source& keys, const Source& values) {
    const int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * ROWS;
    const int count = min(SIDE, work.queries - work.first), row = work.first + own;
    const int low = work.low(work.first), high = work.high(work.first + count);
    __shared__ Four weights[WARPS][OTHERS];
    __shared__ REAL peak[SIDE], total[SIDE], factor[SIDE];  // of each query, by the first lane
    Four* p = weights[own / ROWS] + lane;
    Kept y = {};
    if (lane == 0)
        for (int r = 0; r < ROWS; ++r) peak[own + r] = -infinity(), total[own + r] = 0;
    for (int start = low; start < high; start += OTHERS) {
        const int seen = min(OTHERS, high - start);
        products(p, work.q.from(work.first), count, keys.from(start), seen);
        if (own >= count) continue;  // the same for the whole warp
#pragma unroll 1
        for (int r = 0; r < ROWS; ++r) {
            REAL highest = -infinity(), sum = 0;
#pragma unroll
            for (int k = 0; k < OWN; ++k) {
                if (WARP * k >= seen) break;
                read_anew();
                const int i = row + r, j = start + lane + WARP * k;
                REAL& score = p[WARP * k].of[r];
                score = work.sees(i, j) ? work.score<EXTENDED>(score, i, j) : -infinity();
                highest = Max::combine(highest, score);
            }
            highest = Max::combine(peak[own + r], warp_reduce<Max>(highest));
#pragma unroll
            for (int k = 0; k < OWN; ++k) {
                if (WARP * k >= seen) break;
                REAL& weight = p[WARP * k].of[r];
                weight = exp(weight - shift_of(highest));
                sum += weight;
                if (EXTENDED) weight = work.dropped<true>(weight, row + r, start + lane + WARP * k);
            }
            sum = warp_reduce<Add>(sum);
            __syncwarp();  // all have read the peak; a shuffle orders no memory
            if (lane > 0) continue;
            factor[own + r] = exp(peak[own + r] - shift_of(highest));
            total[own + r] = total[own + r] * factor[own + r] + sum;
            peak[own + r] = highest;
        }
        __syncwarp();  // weights and factors are there
#pragma unroll
        for (int k = 0; k < KEPT; ++k)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) y.of[k].of[r] *= factor[own + r];
        add_weighted(y, weights[own / ROWS], values.from(start), seen);
        weighted_sums(weights[own / ROWS], values.from(start), seen, [&](int c, Four sum) {
            REAL* place = work.y.row(row) + c;
#pragma unroll
            for (int r = 0; r < ROWS; ++r, place += work.y.stride) {
                if (own + r >= count) break;
                REAL value = sum.of[r];
                if (start > low) value += *place * factor[own + r];
                if (start + OTHERS >= high && total[own + r] != 0) value /= total[own + r];
                *place = value;
            }
        });
    }
    if (low >= high) {
        clear(work.y, row, min(row + ROWS, work.queries), lane, WARP);
    } else if (own < count) {
#pragma unroll
        for (int k = 0; k < KEPT; ++k)
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                if (total[own + r] != 0) y.of[k].of[r] /= total[own + r];
        put_kept(work.y, row, count - own, y, false);
    }
    for (int r = own; lane == 0 && work.log_sums && r < min(own + ROWS, count); ++r)
        work.log_sums[(work.first + r) * work.heads] = log_sum_of(peak[r], total[r]);
}

// The only query of a sentence.
template <class Source>
__device__ __forceinline__ void attend_alone(
    const Work& work, const Source& keys, const Source& values) {
    __shared__ REAL scores[CHUNK], weights[CHUNK];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int high = work.high(1);
    REAL peak = -infinity(), total = 0;
    for (int start = 0; start < high; start += CHUNK) {
        const int count = min(CHUNK, high - start);
        dots_of_rows(keys.from(start), count, work.q.first, [&](int n, REAL dot) {
            scores[n] = work.sees(0, start + n) ? dot * work.scale : -infinity();
        });
        __syncthreads();
        const REAL before = peak;
        for (int n = lane; n < count; n += WARP) peak = Max::combine(peak, scores[n]);
        peak = warp_reduce<Max>(peak);
        const REAL shift = shift_of(peak), factor = exp(before - shift);
        REAL sum = 0;  // every warp makes it for itself, and 32 of the weights for all
        for (int n = lane; n < count; n += WARP) {
            const REAL p = exp(scores[n] - shift);
            if (n / WARP == warp) weights[n] = p;
            sum += p;
        }
        total = total * factor + warp_reduce<Add>(sum);
        __syncthreads();
        const auto rows = values.from(start);
        sums_of_columns<REAL>(
            count, rows.width, [&](int n, int c) { return weights[n] * rows.row(n)[c]; },
            [&](int c, REAL value) {
                REAL* place = work.y.first + c;
                if (start) value += *place * factor;
                if (start + CHUNK >= high && total != 0) value /= total;
                *place = value;
            });
    }
    if (high <= 0) clear(work.y, 0, 1, threadIdx.x, blockDim.x);
    if (threadIdx.x == 0 && work.log_sums) work.log_sums[0] = log_sum_of(peak, total);
}

template <bool EXTENDED>
__device__ __forceinline__ void attend_block(const REAL* queries, const REAL* keys,
    const REAL* values, REAL* out, REAL* log_sums, Tables tables, Extension extension) {
    __shared__ Work work;
    if (threadIdx.x == 0) {
        tables.find(work, queries, keys, values, log_sums, blockIdx.y, SIDE);
        if (EXTENDED) tables.extend(work, extension, blockIdx.y);
        work.y = tables.head_of(out, work.query, tables.value_width, blockIdx.y);
    }
    __syncthreads();
    if (!EXTENDED && work.queries == 1) attend_alone(work, work.k, work.v);
    else attend<EXTENDED>(work, work.k, work.v);
}

// Rows of a sentence and head that lie in pages: row n, and from row `split` on row n + gap, counted
// through the pages. Numbers are KEPT_AS, which is REAL, or Bfloat16 in kernels that are made from
// this text: see kernels/cuda/attention/dot_product.py.
#ifndef KEPT_AS
#define KEPT_AS REAL
#endif
struct PagedRows {
    // Rows from one on. What tells of the pages stays in shared memory: registers are short.
    struct From {
        const PagedRows& rows;
        int first, width;

        __device__ __forceinline__ const KEPT_AS* row(int n) const { return rows.row(first + n); }
    };

    const long long* pages;
    int offset;  // where rows begin in a page, in bytes
    int split, gap, log_rows, stride, width;

    __device__ __forceinline__ const KEPT_AS* row(int n) const {
        const int place = n + (n >= split ? gap : 0), page = place >> log_rows;
        return (const KEPT_AS*)(pages[page] + offset) + (place - (page << log_rows)) * stride;
    }
    __device__ __forceinline__ From from(int n) const { return {*this, n, width}; }
};

// Where keys and values lie: addresses of all sentences' pages, the first of each sentence, its
// split and gap or NULL, and the binary logarithm of a page's rows: a number is not divided for each
// row that is read.
struct PageTables {
    const long long* pages;
    const int* firsts;
    const long long* gaps;
    int log_rows;

    __device__ __forceinline__ PagedRows rows(
        int sentence, long long offset, int stride, int width, int head) const {
        const int split = gaps ? (int)gaps[2 * sentence] : 0x7fffffff;
        return {pages + firsts[sentence], (int)offset + head * width * (int)sizeof(KEPT_AS), split,
            gaps ? (int)gaps[2 * sentence + 1] : 0, log_rows, stride, width};
    }
};

template <bool EXTENDED>
__device__ __forceinline__ void attend_pages(const REAL* queries, PageTables pages,
    long long key_offset, long long value_offset, REAL* out, Tables tables, Extension extension) {
    __shared__ Work work;
    __shared__ PagedRows keys, values;
    if (threadIdx.x == 0) {
        const int head = blockIdx.y / tables.shared;
        tables.find(work, queries, nullptr, nullptr, nullptr, blockIdx.y, SIDE);
        if (EXTENDED) tables.extend(work, extension, blockIdx.y);
        work.y = tables.head_of(out, work.query, tables.value_width, blockIdx.y);
        keys = pages.rows(tables.sentence(), key_offset, tables.key_row, tables.key_width, head);
        values =
            pages.rows(tables.sentence(), value_offset, tables.value_row, tables.value_width, head);
    }
    __syncthreads();
    if (!EXTENDED && work.queries == 1) attend_alone(work, keys, values);
    else attend<EXTENDED>(work, keys, values);
}

// out = Σ_j p_ij v_j and log Σ_j exp(score_ij), unless log_sums is NULL.
extern "C" __global__ void __launch_bounds__(512, 2) dot_attention(const REAL* queries,
    const REAL* keys, const REAL* values, REAL* out, REAL* log_sums, const long long* tiles,
    const long long* query_offsets, const long long* key_offsets, const REAL* scales,
    const long long* masks, const bool* visible, int sentences, int heads, int shared,
    int key_width, int value_width, int query_row, int key_row, int value_row) {
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, shared, key_width, value_width, query_row, key_row, value_row};
    attend_block<false>(queries, keys, values, out, log_sums, tables, {});
}

// The same with a bias and dropout.
extern "C" __global__ void __launch_bounds__(256, 4)
    dot_attention_extended(const REAL* queries, const REAL* keys, const REAL* values, REAL* out,
        REAL* log_sums, const long long* tiles, const long long* query_offsets,
        const long long* key_offsets, const REAL* scales, const long long* masks,
        const bool* visible, int sentences, int heads, int shared, int key_width, int value_width,
        int query_row, int key_row, int value_row, const REAL* bias, const int* rows, int zero,
        int columns, const long long* pairs, const unsigned char* features, int feature_bytes,
        const unsigned* streams, unsigned bound, REAL scale, REAL softcap, const int* starts) {
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, shared, key_width, value_width, query_row, key_row, value_row};
    attend_block<true>(queries, keys, values, out, log_sums, tables,
        {bias, rows, zero, columns, pairs, features, feature_bytes, streams, bound, scale, softcap,
            starts});
}

// Over keys and values in pages.
extern "C" __global__ void __launch_bounds__(512, 2) dot_attention_of_pages(const REAL* queries,
    const long long* pages, const int* firsts, const long long* gaps, int log_rows,
    long long key_offset, long long value_offset, REAL* out, const long long* tiles,
    const long long* query_offsets, const long long* key_offsets, const REAL* scales,
    const long long* masks, const bool* visible, int sentences, int heads, int shared,
    int key_width, int value_width, int query_row, int key_row, int value_row) {
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, shared, key_width, value_width, query_row, key_row, value_row};
    attend_pages<false>(
        queries, {pages, firsts, gaps, log_rows}, key_offset, value_offset, out, tables, {});
}

// The same with a bias.
extern "C" __global__ void __launch_bounds__(256, 4)
    dot_attention_of_pages_extended(const REAL* queries, const long long* pages, const int* firsts,
        const long long* gaps, int log_rows, long long key_offset, long long value_offset,
        REAL* out, const long long* tiles, const long long* query_offsets,
        const long long* key_offsets, const REAL* scales, const long long* masks,
        const bool* visible, int sentences, int heads, int shared, int key_width, int value_width,
        int query_row, int key_row, int value_row, const REAL* bias, const int* rows, int zero,
        int columns, const long long* pairs, const unsigned char* features, int feature_bytes,
        const unsigned* streams, unsigned bound, REAL scale, REAL softcap, const int* starts) {
    const Tables tables = {tiles, query_offsets, key_offsets, scales, masks, visible, sentences,
        heads, shared, key_width, value_width, query_row, key_row, value_row};
    attend_pages<true>(queries, {pages, firsts, gaps, log_rows}, key_offset, value_offset, out,
        tables,
        {bias, rows, zero, columns, pairs, features, feature_bytes, streams, bound, scale, softcap,
            starts});
}
