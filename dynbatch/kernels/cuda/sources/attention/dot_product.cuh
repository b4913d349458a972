// What dot-product attention of every sentence's queries over its own keys has in common, forward and
// backward.
//
// Matrices are packed rows, with one head beside the other: queries (N_q, heads * key_width), keys
// (N_k, key_heads * key_width), values (N_k, key_heads * value_width), out and dout (N_q, heads *
// value_width). Rows of the first three, and of their gradients, may be parts of wider ones. Each head
// of keys and values is read by `shared` = heads / key_heads heads of queries. log_sums and means are
// (N_q, heads). Tables:
//
//     tiles          number of the first tile of each sentence; NULL: every sentence has one tile
//     query_offsets  first query of each sentence, and N_q; key_offsets likewise
//     scales         of each sentence's scores
//     masks, visible  what its queries see: `Mask` in attention.cuh
//
// Grid (tiles, heads). A block does a tile of queries of one sentence in one head, or, in a grid of
// (tiles, key_heads), of keys for the gradients of keys and values, and goes through the other side
// tile by tile: dot_product_tiles.cuh, dot_product_mma.cuh.
//
// A sentence with one query, as in a decoder's step, has its keys shared by the warps instead, and
// all its gradients made by one block where each head of queries has keys of its own.
//
// Source: Dao et al. 2022 (FlashAttention), arXiv:2205.14135: running maximum and sum of a row of
// scores, and scores made again in backward.

//
// The kernels named `…_extended` also have a softcap, a bias and dropout; the others are compiled without.

typedef Rows<const REAL> Input;
typedef Rows<REAL> Output;

// What is added to the scores of a head: a number of each pair, which is found in a table by the pair's
// feature, or in a matrix by itself, or by the distance from query to key.
struct Bias {
    const REAL*
        numbers;      // of the head: a table, `columns` from row to row, or a matrix; NULL: no bias
    const int* rows;  // of the table, from distance 0; NULL: one number is times |distance|
    int columns, start;  // position of the first query
    int across;          // from query to query in features and matrices; 0: by distance
    int bytes;           // of a feature
    const unsigned char* features;
    int step;  // from a head's numbers to those of the next

    // The table's row for a pair.
    __device__ __forceinline__ int row(int i, int j) const {
        if (!across) return rows[j - i - start];
        const long long pair = (long long)i * across + j;
        return bytes == 1   ? features[pair]
               : bytes == 2 ? ((const unsigned short*)features)[pair]
                            : ((const int*)features)[pair];
    }
    __device__ __forceinline__ REAL of(int i, int j) const {
        if (across && !features) return numbers[(long long)i * across + j];
        if (across || rows) return numbers[(long long)row(i, j) * columns];
        return numbers[0] * abs(j - i - start);
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
    REAL scale, softcap;     // 0: none
    Mask mask;
    Bias bias;
    Drop drop;
    long long query, key;  // first rows of the sentence
    int queries, keys, heads;
    int first;  // row of the sentence in the tile
    bool adds;  // to the gradients of keys and values

    // Queries from `begin` to `end` may see keys from `low` to `high`.
    __device__ __forceinline__ int low(int begin) const { return max(0, begin - mask.left); }
    __device__ __forceinline__ int high(int end) const { return min(keys, end + mask.right); }

    __device__ __forceinline__ bool sees(int i, int j) const {
        return i < queries && j < keys && mask.sees(i, j);
    }

    // The score of a query and a key that it sees, from their product.
    template <bool EXTENDED>
    __device__ __forceinline__ REAL score(REAL product, int i, int j) const {
        REAL score = product * scale;
        if constexpr (EXTENDED) {
            if (softcap > 0) score = softcap * tanh(score / softcap);
            if (bias.numbers) score += bias.of(i, j);
        }
        return score;
    }

    // The gradient of the product, from that of the probability p. A softcap's slope, 1 - tanh²,
    // follows from p, since the product is no longer there: tanh = (log p + log_sum - bias) / c.
    template <bool EXTENDED>
    __device__ __forceinline__ REAL slope(REAL p, REAL dp, REAL mean, int i, int j) const {
        const REAL slope = scale * (p * (dp - mean));
        if constexpr (EXTENDED)
            if (softcap > 0 && p > 0) {
                REAL score = log(p) + log_sums[i * heads];
                if (bias.numbers) score -= bias.of(i, j);
                const REAL u = score / softcap;
                return slope * (1 - u * u);
            }
        return slope;
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

// What lies in shared memory is read anew after this: a loop over elements that kept all that it needs
// of `Work` in registers would have none left for the rest.
__device__ __forceinline__ void read_anew() { asm volatile("" ::: "memory"); }

// What extended kernels have for all sentences: a bias, and which of `rows` is that of distance 0; how
// many numbers a row has; where the features of each sentence's pairs begin, or without these its
// matrices, one or as many as heads, or NULL; each sentence's random stream, the least bits that keep a
// pair, and what it is scaled by; a softcap; the
// position of each sentence's first query, or NULL for 0.
struct Extension {
    const REAL* bias;
    const int* rows;
    int zero, columns;
    const long long* pairs;
    const unsigned char* features;
    int feature_bytes;
    const unsigned* streams;
    unsigned bound;
    REAL scale, softcap;
    const int* starts;
};

// The tables, and the sizes that go with them.
struct Tables {
    const long long *tiles, *query_offsets, *key_offsets;
    const REAL* scales;
    const long long* masks;
    const bool* visible;
    int sentences, heads, shared, key_width, value_width;
    int query_row, key_row, value_row;  // elements from a row to the next
    int dquery_row, dkey_row, dvalue_row;

    // Head `head` of a matrix whose rows begin `stride` elements apart.
    template <class T>
    __device__ __forceinline__ Rows<T> columns_of(
        T* matrix, long long row, int stride, int width, int head) const {
        return {matrix ? matrix + row * stride + head * width : nullptr, stride, width};
    }

    // Head `head` of a matrix of all heads of queries and nothing else.
    template <class T>
    __device__ __forceinline__ Rows<T> head_of(
        T* matrix, long long row, int width, int head) const {
        return columns_of(matrix, row, heads * width, width, head);
    }

    __device__ __forceinline__ int sentence() const {
        return tiles ? find_segment(tiles, 1, 0, sentences, blockIdx.x) : blockIdx.x;
    }

    // What a block reads of head `head` of queries, and of the head of keys that it reads. Its tile
    // has `side` rows.
    __device__ __forceinline__ void find(Work& work, const REAL* queries, const REAL* keys,
        const REAL* values, REAL* log_sums, int head, int side) const {
        const int k = sentence(), tile = tiles ? (int)(blockIdx.x - tiles[k]) : 0;
        work.query = query_offsets[k];
        work.key = key_offsets[k];
        work.queries = (int)(query_offsets[k + 1] - work.query);
        work.keys = (int)(key_offsets[k + 1] - work.key);
        work.heads = heads;
        work.first = tile * side;
        work.scale = scales[k];
        work.mask = mask_of(masks, visible, k);
        work.q = columns_of(queries, work.query, query_row, key_width, head);
        work.k = columns_of(keys, work.key, key_row, key_width, head / shared);
        work.v = columns_of(values, work.key, value_row, value_width, head / shared);
        work.log_sums = log_sums ? log_sums + work.query * heads + head : nullptr;
    }

    __device__ __forceinline__ void find_gradients(
        Work& work, const REAL* dout, REAL* means, REAL* dkeys, REAL* dvalues, int head) const {
        work.dy = head_of(dout, work.query, value_width, head);
        work.dk = columns_of(dkeys, work.key, dkey_row, key_width, head / shared);
        work.dv = columns_of(dvalues, work.key, dvalue_row, value_width, head / shared);
        work.means = means ? means + work.query * heads + head : nullptr;
    }

    // From a head's matrix of numbers to that of the next; 0 where all heads have one.
    __device__ __forceinline__ int step_of(const Work& work, const long long* ends) const {
        const int pairs = work.queries * work.keys;
        return ends[1] - ends[0] > pairs ? pairs : 0;
    }

    // After `find`.
    __device__ __forceinline__ void extend(Work& work, Extension extension, int head) const {
        const auto [bias, rows, zero, columns, pairs, features, bytes, streams, bound, scale,
            softcap, starts] = extension;
        work.softcap = softcap;
        const int start = starts ? starts[sentence()] : 0;
        work.bias = {bias, rows ? rows + zero : nullptr, columns, start};
        work.bias.step = columns > 1;
        if (pairs) {
            const long long *ends = pairs + sentence(), begin = ends[0];
            work.bias.across = work.keys, work.bias.bytes = bytes;
            work.bias.features = features ? features + begin * bytes : nullptr;
            if (!features) work.bias.numbers += begin, work.bias.step = step_of(work, ends);
        }
        if (bias) work.bias.numbers += (long long)head * work.bias.step;
        const unsigned first = (unsigned)head * (unsigned)work.queries * (unsigned)work.keys;
        work.drop = {first, streams ? streams[sentence()] : 0, bound, scale};
    }

    // From one head of queries to the next, which reads the same keys.
    __device__ __forceinline__ void next_head(Work& work) const {
        work.q.first += key_width;
        work.dy.first += value_width;
        ++work.log_sums;
        ++work.means;
        if (work.bias.numbers) work.bias.numbers += work.bias.step;
        work.drop.first += (unsigned)work.queries * (unsigned)work.keys;
    }
};

// What is subtracted from scores: their maximum, but 0 where all are -inf.
__device__ __forceinline__ REAL shift_of(REAL peak) { return peak == -infinity() ? (REAL)0 : peak; }

// The logarithm of Σ exp(score).
__device__ __forceinline__ REAL log_sum_of(REAL peak, REAL total) {
    return total == 0 ? infinity() : log(total) + shift_of(peak);
}
