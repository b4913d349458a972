// What dot-product attention of every sentence's queries over its own keys has in common, forward and
// backward.
//
// Matrices are packed rows, with one head beside the other: queries (N_q, heads * key_width), keys
// (N_k, key_heads * key_width), values (N_k, key_heads * value_width), out and dout (N_q, heads *
// value_width). Each head of keys and values is read by `shared` = heads / key_heads heads of
// queries. log_sums and means are (N_q, heads). Tables:
//
//     tiles          number of the first tile of each sentence; NULL: every sentence has one tile
//     query_offsets  first query of each sentence, and N_q; key_offsets likewise
//     scales         of each sentence's scores
//     masks, visible  what its queries see: `Mask` in attention.cuh
//
// Grid (tiles, heads). A block does a tile of 32 queries of one sentence in one head, or, in a grid
// of (tiles, key_heads), of 32 keys for the gradients of keys and values, and goes through the other
// side 32 rows at a time:
//
//                lanes 0 … 31: keys
//     warp 0   queries 0 … 3               Scores are summed from shared memory, by columns. A warp
//       …        …                         has whole rows of them, so softmax needs shuffles only.
//     warp 7   queries 28 … 31             What is summed over tiles lies in the output itself.
//
// A sentence with one query, as in a decoder's step, has its keys shared by the warps instead, and
// all its gradients made by one block where each head of queries has keys of its own. Block 256, or
// 512 where all sentences are of that kind.
//
// Source: Dao et al. 2022 (FlashAttention), arXiv:2205.14135: running maximum and sum of a row of
// scores, and scores made again in backward.

//
// The kernels named `…_extended` also have a bias and dropout; the others are compiled without.

constexpr int SIDE = 32, COLUMNS = 32, ROWS = 4, WARPS = SIDE / ROWS;  // of a tile
constexpr int LOADED = AT_ONCE / 2;  // rows of both factors, at once
constexpr int CHUNK = WARPS * WARP;  // keys of a lone query whose scores are kept at a time

// Numbers of the four rows of a warp.
struct __align__(16) Four {
    REAL of[ROWS];
};

typedef Rows<const REAL> Input;
typedef Rows<REAL> Output;

// What is added to the scores of a head: a number for each distance from query to key.
struct Bias {
    const REAL* numbers;  // of the head, `heads` from row to row of a table; NULL: no bias
    const int* rows;      // of the table, from distance 0; NULL: one number is times |distance|
    int heads, start;     // position of the first query

    __device__ __forceinline__ REAL of(int difference) const {
        const int distance = difference - start;
        return rows ? numbers[(long long)rows[distance] * heads] : numbers[0] * abs(distance);
    }
};

// Which probabilities of a head are dropped, as kernels/dropout.py drops elements.
struct Drop {
    unsigned first;  // number of the head's first pair; pairs count queries, then keys
    unsigned stream, bound;
    REAL scale;  // of those that are kept

    __device__ __forceinline__ REAL factor(unsigned pair) const {
        return random_bits(first + pair, stream) >= bound ? scale : (REAL)0;
    }
};

// One head of one sentence, and the tile that this block does: in shared memory, to save registers.
// Rows of a matrix that is NULL begin at NULL.
struct Work {
    Input q, k, v, out, dy;
    Output y, dq, dk, dv;
    REAL *log_sums, *means;  // of the sentence's first query; `heads` from query to query
    REAL scale;
    Mask mask;
    Bias bias;
    Drop drop;
    long long query, key;  // first rows of the sentence
    int queries, keys, heads;
    int first;  // row of the sentence in the tile

    // Queries from `begin` to `end` may see keys from `low` to `high`.
    __device__ __forceinline__ int low(int begin) const { return max(0, begin - mask.left); }
    __device__ __forceinline__ int high(int end) const { return min(keys, end + mask.right); }

    __device__ __forceinline__ bool sees(int i, int j) const {
        return i < queries && j < keys && mask.sees(i, j);
    }

    // The score of a query and a key that it sees, from their product.
    template <bool EXTENDED>
    __device__ __forceinline__ REAL score(REAL product, int i, int j) const {
        const REAL score = product * scale;
        if constexpr (EXTENDED)
            if (bias.numbers) return score + bias.of(j - i);
        return score;
    }

    // A number of query i and key j times 0 or, if the pair is kept, the scale.
    template <bool EXTENDED>
    __device__ __forceinline__ REAL dropped(REAL number, int i, int j) const {
        if constexpr (EXTENDED)
            if (drop.bound || drop.scale != 1)
                return number * drop.factor((unsigned)i * (unsigned)keys + (unsigned)j);
        return number;
    }
};

// What extended kernels have for all sentences: a bias, and which of `rows` is that of distance 0;
// each sentence's random stream, the least bits that keep a pair, and what it is scaled by; the
// position of each sentence's first query, or NULL for 0.
struct Extension {
    const REAL* bias;
    const int* rows;
    int zero;
    const unsigned* streams;
    unsigned bound;
    REAL scale;
    const int* starts;
};

// The tables, and the sizes that go with them.
struct Tables {
    const long long *tiles, *query_offsets, *key_offsets;
    const REAL* scales;
    const long long* masks;
    const bool* visible;
    int sentences, heads, shared, key_width, value_width;

    // Head `head` of a matrix that has `count` of them.
    template <class T>
    __device__ __forceinline__ Rows<T> head_of(
        T* matrix, long long row, int width, int head, int count) const {
        const int stride = count * width;
        return {matrix ? matrix + row * stride + head * width : nullptr, stride, width};
    }

    template <class T>
    __device__ __forceinline__ Rows<T> of_keys(
        T* matrix, long long row, int width, int head) const {
        return head_of(matrix, row, width, head / shared, heads / shared);
    }

    __device__ __forceinline__ int sentence() const {
        return tiles ? find_segment(tiles, 1, 0, sentences, blockIdx.x) : blockIdx.x;
    }

    // What a block reads of head `head` of queries, and of the head of keys that it reads.
    __device__ __forceinline__ void find(Work& work, const REAL* queries, const REAL* keys,
        const REAL* values, REAL* log_sums, int head) const {
        const int k = sentence(), tile = tiles ? (int)(blockIdx.x - tiles[k]) : 0;
        work.query = query_offsets[k];
        work.key = key_offsets[k];
        work.queries = (int)(query_offsets[k + 1] - work.query);
        work.keys = (int)(key_offsets[k + 1] - work.key);
        work.heads = heads;
        work.first = tile * SIDE;
        work.scale = scales[k];
        work.mask = mask_of(masks, visible, k);
        work.q = head_of(queries, work.query, key_width, head, heads);
        work.k = of_keys(keys, work.key, key_width, head);
        work.v = of_keys(values, work.key, value_width, head);
        work.log_sums = log_sums ? log_sums + work.query * heads + head : nullptr;
    }

    __device__ __forceinline__ void find_gradients(
        Work& work, const REAL* dout, REAL* means, REAL* dkeys, REAL* dvalues, int head) const {
        work.dy = head_of(dout, work.query, value_width, head, heads);
        work.dk = of_keys(dkeys, work.key, key_width, head);
        work.dv = of_keys(dvalues, work.key, value_width, head);
        work.means = means ? means + work.query * heads + head : nullptr;
    }

    // After `find`.
    __device__ __forceinline__ void extend(Work& work, Extension extension, int head) const {
        const auto [bias, rows, zero, streams, bound, scale, starts] = extension;
        const int start = starts ? starts[sentence()] : 0;
        work.bias = {bias ? bias + head : nullptr, rows ? rows + zero : nullptr, heads, start};
        const unsigned first = (unsigned)head * (unsigned)work.queries * (unsigned)work.keys;
        work.drop = {first, streams ? streams[sentence()] : 0, bound, scale};
    }

    // From one head of queries to the next, which reads the same keys.
    __device__ __forceinline__ void next_head(Work& work) const {
        work.q.first += key_width;
        work.dy.first += value_width;
        ++work.log_sums;
        ++work.means;
        if (work.bias.numbers) ++work.bias.numbers;
        work.drop.first += (unsigned)work.queries * (unsigned)work.keys;
    }
};

// What is subtracted from scores: their maximum, but 0 where all are -inf.
__device__ __forceinline__ REAL shift_of(REAL peak) { return peak == -infinity() ? (REAL)0 : peak; }

// products.of[r] = a(4 * warp + r) · b(lane), 0 beyond the counts. All threads must call.
template <class Source>
__device__ __forceinline__ Four products(Input a, int a_count, Source b, int b_count) {
    __shared__ Four a_tile[COLUMNS][WARPS + 1];
    __shared__ REAL b_tile[SIDE][COLUMNS + 1];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Four sum = {};
    int start = 0;
    do {  // once for no columns too: callers count on a barrier
        const int columns = min(COLUMNS, a.width - start);
#pragma unroll 1
        for (int own = 0; own < ROWS && lane < columns; own += LOADED) {
            // Loads come before stores: for all the compiler knows a load might read what was
            // stored to shared memory, and would wait for that, and so for the load before.
            REAL left[LOADED], right[LOADED];
#pragma unroll
            for (int r = 0; r < LOADED; ++r) {
                const int n = warp * ROWS + own + r;
                left[r] = n < a_count ? a.row(n)[start + lane] : (REAL)0;
                right[r] = n < b_count ? b.row(n)[start + lane] : (REAL)0;
            }
#pragma unroll
            for (int r = 0; r < LOADED; ++r) {
                a_tile[lane][warp].of[own + r] = left[r];
                b_tile[warp * ROWS + own + r][lane] = right[r];
            }
        }
        __syncthreads();
        if (warp * ROWS < a_count) {
#pragma unroll(AT_ONCE / 2)
            for (int c = 0; c < columns; ++c) {
                const Four left = a_tile[c][warp];
                const REAL right = b_tile[lane][c];
#pragma unroll
                for (int r = 0; r < ROWS; ++r) sum.of[r] += left.of[r] * right;
            }
        }
        __syncthreads();  // all have read the tiles before they are written again
        start += COLUMNS;
    } while (start < a.width);
    return sum;
}

// body(c, sums) for each column c, with sums.of[r] = Σ_n weights[n].of[r] * rows(n)[c]. `weights`
// is of this warp: all its lanes must call, and meet at a barrier before they write it again.
template <class Source, class Body>
__device__ __forceinline__ void weighted_sums(
    const Four* weights, Source rows, int count, Body body) {
    const int lane = threadIdx.x % WARP;
    __syncwarp();
    for (int c = lane; c < rows.width; c += WARP) {
        Four sum = {};
#pragma unroll AT_ONCE
        for (int n = 0; n < count; ++n) {
            const Four factor = weights[n];
            const REAL value = rows.row(n)[c];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) sum.of[r] += factor.of[r] * value;
        }
        body(c, sum);
    }
}

// Row `row + r` of `to`, r < count, becomes sums.of[r], or has it added, in column c.
__device__ __forceinline__ void put(Output to, int row, int count, int c, Four sums, bool add) {
    REAL* place = to.row(row) + c;
#pragma unroll
    for (int r = 0; r < ROWS; ++r, place += to.stride) {
        if (r >= count) break;
        *place = add ? *place + sums.of[r] : sums.of[r];
    }
}

// Zeros in rows `first` to `end` of `to`, by `threads` of which this one is `thread`.
__device__ __forceinline__ void clear(Output to, int first, int end, int thread, int threads) {
    for (int n = first; to.first && n < end; ++n)
        for (int c = thread; c < to.width; c += threads) to.row(n)[c] = 0;
}

// The logarithm of Σ exp(score).
__device__ __forceinline__ REAL log_sum_of(REAL peak, REAL total) {
    return total == 0 ? infinity() : log(total) + shift_of(peak);
}
