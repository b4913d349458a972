// The gated delta rule: the CUDA version of kernels/attention/gated_delta_rule.py, whose formulas
// and names these are. Plain products: no tensor cores, and few of a large card's threads.
//
// q, k (N, heads · d), v, errors (N, heads · e), log_a, b (N, heads); b is NULL without a delta rule.
// offsets: first row of each sentence, and N. counts: states before each sentence's first one, whose
// rows of all heads lie one after the other in `states`, (d, e) each.
//
// A block does the chunks of one head of a sentence in turn, then of the next one a grid further.
// scratch: `size` numbers for each block. Grid: any number of blocks.

struct Head {
    const REAL *q, *k, *v, *log_a, *b;
    REAL *errors, *states;
    long long row;  // first token
    int count, head, heads, d, e;

    __device__ __forceinline__ long long key(int i) const { return ((row + i) * heads + head) * d; }
    __device__ __forceinline__ long long value(int i) const {
        return ((row + i) * heads + head) * e;
    }
    __device__ __forceinline__ long long gate(int i) const { return (row + i) * heads + head; }
    __device__ __forceinline__ REAL b_of(int i) const { return b ? b[gate(i)] : (REAL)1; }
};

template <class Function>
__device__ __forceinline__ void each(int count, Function function) {
    for (int x = threadIdx.x; x < count; x += blockDim.x) function(x);
}

// decays[i * n + j] = a_j+1 … a_i for j <= i, else 0; before[i] = a_1 … a_i.
__device__ __forceinline__ void decays_of(const Head& x, int n, REAL* decays, REAL* before) {
    each(n + 1, [&](int j) {
        REAL product = 1;
        for (int i = 0; i < n; ++i) {
            if (i > j || j == n) product *= exp(x.log_a[x.gate(i)]);
            if (j == n) before[i] = product;
            else decays[i * n + j] = i < j ? (REAL)0 : product;
        }
    });
    __syncthreads();
}

__device__ __forceinline__ REAL dot(const REAL* a, const REAL* b, int count) {
    REAL sum = 0;
    for (int m = 0; m < count; ++m) sum += a[m] * b[m];
    return sum;
}

// P and, with b, M.
__device__ __forceinline__ void products_of(
    const Head& x, int n, const REAL* decays, REAL* scores, REAL* products) {
    each(n * n, [&](int pair) {
        const int i = pair / n, j = pair % n;
        const REAL *k = x.k + x.key(j), *q = x.q + x.key(i);
        scores[pair] = j > i ? (REAL)0 : decays[pair] * dot(q, k, x.d);
        if (x.b) products[pair] = j >= i ? (REAL)0 : decays[pair] * dot(x.k + x.key(i), k, x.d);
    });
    __syncthreads();
}

// Block: any number of threads.
extern "C" __global__ void gated_delta_rule(const REAL* q, const REAL* k, const REAL* v,
    const REAL* log_a, const REAL* b, const long long* offsets, const long long* counts, REAL* out,
    REAL* errors, REAL* states, REAL* scratch, long long size, int sentences, int heads, int d,
    int e, int chunk) {
    REAL* decays = scratch + blockIdx.x * size;
    REAL *scores = decays + chunk * chunk, *products = scores + chunk * chunk;
    REAL *before = products + chunk * chunk, *rows = before + chunk, *room = rows + chunk * e;
    for (int item = blockIdx.x; item < sentences * heads; item += gridDim.x) {
        const int sentence = item / heads,
                  tokens = (int)(offsets[sentence + 1] - offsets[sentence]);
        Head x = {
            q, k, v, log_a, b, errors, states, offsets[sentence], 0, item % heads, heads, d, e};
        const REAL* state = NULL;
        for (int done = 0, number = 0; done < tokens; done += chunk, ++number) {
            const int n = tokens - done < chunk ? tokens - done : chunk;
            decays_of(x, n, decays, before);
            products_of(x, n, decays, scores, products);
            each(e, [&](int c) {
                for (int i = 0; i < n; ++i) {
                    REAL w = v[x.value(i) + c];
                    if (b) {
                        REAL sum = 0;
                        const REAL* key = k + x.key(i);
                        if (state)
                            for (int m = 0; m < d; ++m) sum += key[m] * state[m * e + c];
                        w -= before[i] * sum;
                        for (int j = 0; j < i; ++j) w -= products[i * n + j] * rows[j * e + c];
                        if (errors) errors[x.value(i) + c] = w;
                        w *= x.b_of(i);
                    }
                    rows[i * e + c] = w;
                }
            });
            __syncthreads();
            each(n * e, [&](int place) {
                const int i = place / e, c = place % e;
                REAL sum = 0, y = 0;
                const REAL* query = q + x.key(i);
                if (state)
                    for (int m = 0; m < d; ++m) sum += query[m] * state[m * e + c];
                for (int j = 0; j <= i; ++j) y += scores[i * n + j] * rows[j * e + c];
                out[x.value(i) + c] = before[i] * sum + y;
            });
            __syncthreads();
            if (done + n < tokens) {
                REAL* next =
                    states ? states + ((counts[sentence] + number) * heads + x.head) * d * e : room;
                each(d * e, [&](int place) {
                    const int m = place / e, c = place % e;
                    REAL sum = 0;
                    for (int j = 0; j < n; ++j)
                        sum += decays[(n - 1) * n + j] * k[x.key(j) + m] * rows[j * e + c];
                    next[place] = state ? before[n - 1] * state[place] + sum : sum;
                });
                state = next;
                __syncthreads();
            }
            x.row += n;
        }
    }
}

// Any of dq, dk, dv, dlog_a and db may be NULL. Block: a whole number of warps.
extern "C" __global__ void gated_delta_rule_backward(const REAL* q, const REAL* k, const REAL* v,
    const REAL* log_a, const REAL* b, const long long* offsets, const long long* counts,
    REAL* errors, REAL* states, const REAL* dout, REAL* dq, REAL* dk, REAL* dv, REAL* dlog_a,
    REAL* db, REAL* scratch, long long size, int sentences, int heads, int d, int e, int chunk) {
    __shared__ REAL partial[WARP];
    const int square = chunk * chunk;
    REAL *decays = scratch + blockIdx.x * size, *scores = decays + square;
    REAL *products = scores + square, *dscores = products + square, *before = dscores + square;
    REAL *of_before = before + chunk, *of_after = of_before + chunk, *dw = of_after + chunk;
    REAL *to_q = dw + chunk * e, *to_k = to_q + chunk * d, *after_k = to_k + chunk * d;
    REAL* dstate = after_k + chunk * d;
    for (int item = blockIdx.x; item < sentences * heads; item += gridDim.x) {
        const int sentence = item / heads,
                  tokens = (int)(offsets[sentence + 1] - offsets[sentence]);
        Head x = {q, k, v, log_a, b, errors, states, 0, 0, item % heads, heads, d, e};
        bool is_last = true;
        for (int number = (tokens - 1) / chunk; number >= 0 && tokens; --number, is_last = false) {
            const int done = number * chunk, n = tokens - done < chunk ? tokens - done : chunk;
            x.row = offsets[sentence] + done;
            const REAL* state =
                number ? states + ((counts[sentence] + number - 1) * heads + x.head) * d * e : NULL;
            const REAL* to_last = decays + (n - 1) * n;
            // w of token j, and dL/de of token i.
            auto w_of = [&](int j, int c) {
                return b ? x.b_of(j) * errors[x.value(j) + c] : v[x.value(j) + c];
            };
            auto u_of = [&](int i, int c) { return x.b_of(i) * dw[i * e + c]; };
            decays_of(x, n, decays, before);
            products_of(x, n, decays, scores, products);
            each(e, [&](int c) {
                for (int j = n - 1; j >= 0; --j) {
                    REAL sum = 0, part = 0;
                    for (int i = j; i < n; ++i) sum += scores[i * n + j] * dout[x.value(i) + c];
                    if (!is_last)
                        for (int m = 0; m < d; ++m) part += k[x.key(j) + m] * dstate[m * e + c];
                    sum += to_last[j] * part;
                    if (b)
                        for (int i = j + 1; i < n; ++i) sum -= products[i * n + j] * u_of(i, c);
                    dw[j * e + c] = sum;
                    if (dv) dv[x.value(j) + c] = u_of(j, c);
                }
            });
            __syncthreads();
            each(n * n, [&](int pair) {
                const int i = pair / n, j = pair % n;
                REAL slope = 0, other = 0;
                for (int c = 0; c < e && j <= i; ++c) {
                    slope += dout[x.value(i) + c] * w_of(j, c);
                    if (b && j < i) other -= u_of(i, c) * w_of(j, c);
                }
                REAL term = scores[pair] * slope;
                dscores[pair] = decays[pair] * slope;
                if (b) {
                    term += products[pair] * other;
                    products[pair] = decays[pair] * other;
                }
                scores[pair] = term;
            });
            each(n * d, [&](int place) {
                const int i = place / d, m = place % d;
                REAL query = 0, key = 0, after = 0;
                for (int c = 0; c < e; ++c) {
                    if (state) query += dout[x.value(i) + c] * state[m * e + c];
                    if (state && b) key -= u_of(i, c) * state[m * e + c];
                    if (!is_last) after += w_of(i, c) * dstate[m * e + c];
                }
                to_q[place] = before[i] * query;
                to_k[place] = before[i] * key;
                after_k[place] = to_last[i] * after;
            });
            REAL inner = 0;
            if (state && !is_last) each(d * e, [&](int p) { inner += dstate[p] * state[p]; });
            inner = before[n - 1] * block_reduce<Add>(inner, partial);  // with a barrier at its end
            each(n, [&](int i) {
                const REAL *query = q + x.key(i), *key = k + x.key(i);
                of_before[i] = dot(to_q + i * d, query, d) + dot(to_k + i * d, key, d);
                of_after[i] = dot(after_k + i * d, key, d);
                REAL sum = 0;
                for (int c = 0; c < e && b; ++c) sum += dw[i * e + c] * errors[x.value(i) + c];
                if (db) db[x.gate(i)] = sum;
            });
            each(n * d, [&](int place) {
                const int i = place / d, m = place % d;
                REAL query = to_q[place], key = to_k[place] + after_k[place];
                for (int j = 0; j <= i; ++j) query += dscores[i * n + j] * k[x.key(j) + m];
                for (int j = i; j < n; ++j) key += dscores[j * n + i] * q[x.key(j) + m];
                for (int j = 0; j < n && b; ++j)
                    if (j != i) key += products[j < i ? i * n + j : j * n + i] * k[x.key(j) + m];
                if (dq) dq[x.key(i) + m] = query;
                if (dk) dk[x.key(i) + m] = key;
            });
            __syncthreads();
            each(n, [&](int t) {
                REAL sum = inner;
                for (int i = t; i < n; ++i) {
                    REAL row = of_before[i];
                    for (int j = 0; j < t; ++j) row += scores[i * n + j];
                    sum += row;
                }
                for (int j = 0; j < t; ++j) sum += of_after[j];
                if (dlog_a) dlog_a[x.gate(t)] = sum;
            });
            each(number ? d * e : 0, [&](int place) {
                const int m = place / e, c = place % e;
                REAL sum = 0;
                for (int i = 0; i < n; ++i) {
                    const REAL other = b ? k[x.key(i) + m] * u_of(i, c) : (REAL)0;
                    sum += before[i] * (q[x.key(i) + m] * dout[x.value(i) + c] - other);
                }
                dstate[place] = is_last ? sum : before[n - 1] * dstate[place] + sum;
            });
            __syncthreads();
        }
    }
}
