// The gated delta rule token by token, for sentences that are longer than a chunk pays for.
//
// A state is affine in the one before it, with coefficients that the tokens and w have: gradients
// need no states. One run from the last token to the first carries the state's gradient, another
// one from the first the state, turned, whose columns are then those of q and k.
//
// Columns of a state have nothing to do with each other but in sums across them. A tile of them, as
// large as half of a first-level cache, goes through all tokens before the next tile does. A token
// is one pass over the tile: what follows from sums over rows, such as the next w, is known after it.
#include "attention/tiles.h"

enum { RESTART = 16 };            // tokens over which a gate's gradient is a running sum
enum { TILE_BYTES = 20 * 1024 };  // most of a tile with several vectors a row

#if VECTOR_BYTES == 64 || defined(__aarch64__)
enum { VECTORS = 4 };  // of a tile's columns: 22 of 32 registers
#else
enum { VECTORS = 2 };
#endif

// A call, as Python's table has it. What is not there, or not wanted, is NULL.
typedef struct {
    const REAL *q, *k, *v, *log_a, *b;
    REAL *out, *errors, *states;
    const REAL* dout;
    REAL *dq, *dk, *dv, *dlog_a, *db;
    const int64_t* sentences;  // of each the first row, tokens, and the number of its first state
    int64_t heads, d, e, chunk, longest, group;
} Call;

static REAL* take(REAL** room, ptrdiff_t size) {
    REAL* part = *room;
    *room += size;
    return part;
}

static ptrdiff_t whole_blocks(ptrdiff_t n) { return (n + SIDE - 1) / SIDE * SIDE; }

static REAL inner(ptrdiff_t size, const REAL* x, const REAL* y) {
    vector sums = {0};
    EACH_VECTOR(i, part, size) sums = multiply_add(get(x + i, part), get(y + i, part), sums);
    return sum_lanes(sums);
}

// S = a S + Σ left rightᵀ; `sums` = Sᵀ times vectors, before the terms are added or after it, and
// `across` = S weights, which is added to what is there if `adds`.
typedef struct {
    REAL a;
    const REAL *left[2], *right[2], *times[2], *weights;
    REAL *sums[2], *across;
    int adds;
} Step;

INLINE void pass_over(const int vectors, const int terms, const int count, const int early,
    const int across, ptrdiff_t rows, ptrdiff_t columns, REAL* state, const Step* step) {
    enum { N = VECTOR_BYTES / sizeof(REAL) };
    const Step x = *step;  // which no store of a number can change
    const ptrdiff_t part = columns - (vectors - 1) * LANES;
    vector right[2][VECTORS], weights[VECTORS], all[2][VECTORS] = {0}, of_rows[N];
#define EACH_VECTOR_OF_ROW _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++)
#define EACH_OF(n) _Pragma("GCC unroll 2") for (int m = 0; m < (n); m++)
#define WIDTH (v + 1 < vectors ? LANES : part)
    EACH_VECTOR_OF_ROW {
        EACH_OF(terms) right[m][v] = get(x.right[m] + v * LANES, WIDTH);
        if (across) weights[v] = get(x.weights + v * LANES, WIDTH);
    }
    for (ptrdiff_t start = 0; start < rows; start += N) {
        vector sums[2][VECTORS] = {0};  // in two levels, which are more exact than one
        const ptrdiff_t height = least(rows - start, N);
        for (ptrdiff_t r = 0, i = start; r < height; r++, i++, state += vectors * LANES) {
            vector sum = {0}, left[2], times[2];
            EACH_OF(terms) left[m] = splat(x.left[m][i]);
            EACH_OF(count) times[m] = splat(x.times[m][i]);
            EACH_VECTOR_OF_ROW {
                vector s = load(state + v * LANES) * x.a, before = s;
                EACH_OF(terms) s = multiply_add(left[m], right[m][v], s);
                store(state + v * LANES, s);
                EACH_OF(count) sums[m][v] = multiply_add(times[m], early ? before : s, sums[m][v]);
                if (across) sum = multiply_add(s, weights[v], sum);
            }
            if (across) of_rows[r] = sum;
        }
        EACH_VECTOR_OF_ROW EACH_OF(count) all[m][v] += sums[m][v];
        if (across) {  // lane r of the sum of all is row r's
            for (ptrdiff_t r = height; r < N; r++) of_rows[r] = splat(0);
#pragma GCC unroll 4
            for (int half = N / 2; half; half /= 2)
#pragma GCC unroll 8
                for (int r = 0; r < half; r++)
                    of_rows[r] = first_halves(of_rows[r], of_rows[r + half]) +
                                 second_halves(of_rows[r], of_rows[r + half]);
            REAL* to = x.across + start;
            put(to, x.adds ? get(to, height) + of_rows[0] : of_rows[0], height);
        }
    }
    EACH_VECTOR_OF_ROW EACH_OF(count) put(x.sums[m] + v * LANES, all[m][v], WIDTH);
#undef EACH_VECTOR_OF_ROW
#undef EACH_OF
#undef WIDTH
}
// The vectors of a tile's rows.
static ptrdiff_t vectors_of(ptrdiff_t columns) {
    return columns > 3 * LANES ? 4 : columns > LANES ? 2 : 1;
}
#define EACH_PASS(name, ...)                                                           \
    static __attribute__((noinline)) void name(                                        \
        ptrdiff_t rows, ptrdiff_t columns, REAL* state, const Step* step) {            \
        ptrdiff_t vectors = vectors_of(columns);                                       \
        if (vectors == 4) pass_over(VECTORS, __VA_ARGS__, rows, columns, state, step); \
        else if (vectors == 2) pass_over(2, __VA_ARGS__, rows, columns, state, step);  \
        else pass_over(1, __VA_ARGS__, rows, columns, state, step);                    \
    }
// terms, sums, whether they are early, whether there are sums across
EACH_PASS(delta_forward, 1, 2, 0, 0)
EACH_PASS(delta_backward, 2, 1, 0, 1)
EACH_PASS(delta_again, 1, 2, 1, 0)

// Columns of the next tile, if so many are left.
static ptrdiff_t columns_of_tile(ptrdiff_t rows, ptrdiff_t columns) {
    ptrdiff_t vectors = least(VECTORS, vectors_of(columns));
    while (vectors > 1 && rows * vectors * VECTOR_BYTES > TILE_BYTES) vectors /= 2;
    return least(columns, vectors * LANES);
}

// A head of a sentence: rows where they lie, `key_row` and `value_row` apart, and its gates.
typedef struct {
    const REAL *q, *k, *v;
    REAL *a, *b;
    ptrdiff_t tokens, d, e, key_row, value_row, gates, heads, keys, values;
} Head;

// The room from the next whole cache line on: a vector that lies in two of them takes twice as long.
static REAL* aligned(REAL* room) { return (REAL*)(((uintptr_t)room + 63) / 64 * 64); }

static Head head_of(
    const Call* call, ptrdiff_t row, ptrdiff_t tokens, ptrdiff_t head, REAL** room) {
    ptrdiff_t heads = call->heads, d = call->d, e = call->e, gates = row * heads + head;
    Head x = {call->q + gates * d, call->k + gates * d, call->v + gates * e, take(room, tokens),
        take(room, tokens), tokens, d, e, heads * d, heads * e, gates, heads, gates * d, gates * e};
    for (ptrdiff_t t = 0; t < tokens; t++) {
        x.a[t] = call->log_a[gates + t * heads];
        x.b[t] = call->b[gates + t * heads];
    }
    EACH_VECTOR(t, part, tokens) put(x.a + t, exp_of(get(x.a + t, part)), part);
    return x;
}

// Ask for a row that lies far from the ones before it, a token before it is read, or written: a store
// that waits for its line would hold up those of the state behind it.
#define ASK_FOR(writes, x, width)                                 \
    for (ptrdiff_t at = 0; at < (width); at += 64 / (REAL_BYTES)) \
    __builtin_prefetch((x) + at, writes)

static void clear(ptrdiff_t n, REAL* x) { memset(x, 0, (size_t)n * sizeof(REAL)); }

static void scale_row(ptrdiff_t n, REAL factor, const REAL* x, REAL* to) {
    EACH_VECTOR(i, part, n) put(to + i, get(x + i, part) * factor, part);
}

static void forward_by_steps(
    const Call* call, ptrdiff_t row, ptrdiff_t tokens, ptrdiff_t head, REAL* room) {
    const Head its = head_of(call, row, tokens, head, &room), *x = &its;
    ptrdiff_t d = x->d, e = x->e;
    room = aligned(room);
    REAL *seen = take(&room, VECTORS * LANES), *w = take(&room, VECTORS * LANES);
    REAL *unread = take(&room, VECTORS * LANES), *state = room;
    for (ptrdiff_t c = 0, columns; c < e; c += columns) {
        columns = columns_of_tile(d, e - c);
        clear(d * VECTORS * LANES, state);
        clear(columns, seen);
        for (ptrdiff_t t = 0; t < x->tokens; t++) {
            ptrdiff_t next = least(t + 1, x->tokens - 1);
            const REAL *k = x->k + t * x->key_row, *v = x->v + t * x->value_row + c;
            REAL* out = call->out + x->values + t * x->value_row + c;
            REAL* errors = call->errors ? call->errors + x->values + t * x->value_row + c : unread;
            ASK_FOR(0, x->q + next * x->key_row, d);
            ASK_FOR(0, x->k + next * x->key_row, d);
            ASK_FOR(0, x->v + next * x->value_row + c, columns);
            ASK_FOR(1, call->out + x->values + next * x->value_row + c, columns);
            if (call->errors)
                ASK_FOR(1, call->errors + x->values + next * x->value_row + c, columns);
            Step step = {.a = x->a[t],
                .left = {k},
                .right = {w},
                .times = {x->q + t * x->key_row, x->k + next * x->key_row},
                .sums = {out, seen}};
            EACH_VECTOR(i, part, columns) {
                vector error = get(v + i, part) - get(seen + i, part) * x->a[t];
                put(errors + i, error, part);
                put(w + i, error * x->b[t], part);
            }
            delta_forward(d, columns, state, &step);
        }
    }
}

// Whether the sum of the gates' gradients begins anew before token t, as it grows inexact.
INLINE int restarts(const Head* x, ptrdiff_t t) {
    return (t + 1) % RESTART == 0 && t + 1 < x->tokens;
}

// The inner product of a tile of a turned state, from row c on, and of the state's gradient: its
// columns of SIDE rows each, as `turn` leaves them.
static REAL of_state(
    ptrdiff_t e, ptrdiff_t columns, const REAL* state, ptrdiff_t c, const REAL* gradient) {
    vector all = {0};
    for (ptrdiff_t r = 0; r < e; r++, state += vectors_of(columns) * LANES) {
        vector sum = {0};
        EACH_VECTOR(i, part, columns) {
            ptrdiff_t row = c + i;
            const REAL* slopes = gradient + row / SIDE * SIDE * e + r * SIDE + row % SIDE;
            sum = multiply_add(get(state + i, part), get(slopes, part), sum);
        }
        all += sum;
    }
    return sum_lanes(all);
}

// With F_t the gradient of S_t from the tokens after t, P_t = a_t S_t-1 and u_t = dL/de_t, and dots
// with the token's own rows apart:
//
//     dw_t = F_tᵀ k_t + (q_t · k_t) dout_t,       dk_t = F_t w_t + (w_t · dout_t) q_t - P_t u_t
//     dq_t = P_t dout_t + (w_t · dout_t) k_t,     F_t-1 = a_t (F_t + q_t dout_tᵀ - k_t u_tᵀ)
//     dlog_a_t = dlog_a_t+1 + q_t · P_t dout_t - k_t · P_t u_t - w_t · F_tᵀ k_t
//
// dlog_a_t+1 = <S_t, F_t>, which is computed anew each RESTART tokens. Dots of a token with itself are
// no part of it: they would be of another size where gates are strong.
static void backward_by_steps(
    const Call* call, ptrdiff_t row, ptrdiff_t tokens, ptrdiff_t head, REAL* room) {
    const Head its = head_of(call, row, tokens, head, &room), *x = &its;
    ptrdiff_t d = x->d, e = x->e, key = x->key_row, value = x->value_row;
    ptrdiff_t size = whole_blocks(d) * e, wide = VECTORS * LANES;
    // Gradients where they are wanted, else a row, or rows, that nobody reads but this function.
    ptrdiff_t dq_row = call->dq ? key : 0, dk_row = call->dk ? key : 0;
    ptrdiff_t u_row = call->dv ? value : e;
    room = aligned(room);
    REAL *later = take(&room, 2 * wide), *sums = take(&room, 2 * wide),
         *w = take(&room, whole_blocks(e));
    REAL *state = take(&room, most(d, e) * wide), *slopes = take(&room, tokens / RESTART * size);
    REAL* dq = call->dq ? call->dq + x->keys : take(&room, whole_blocks(d));
    REAL* dk = call->dk ? call->dk + x->keys : take(&room, whole_blocks(d));
    REAL* u = call->dv ? call->dv + x->values : take(&room, tokens * e);
    REAL *ends = take(&room, tokens), *starts = take(&room, tokens);
    REAL *along = take(&room, tokens), *db = take(&room, tokens);
    REAL *dlog_a = take(&room, tokens), *flows = take(&room, tokens / RESTART + 2);
    const REAL *dout = call->dout + x->values, *errors = call->errors + x->values;
    clear(tokens / RESTART + 2, flows);
    clear(4 * tokens, ends);  // and those behind
    for (ptrdiff_t c = 0, columns; c < e; c += columns) {
        columns = columns_of_tile(d, e - c);
        clear(d * wide, state);
        clear(2 * wide, later);
        for (ptrdiff_t t = tokens - 1; t >= 0; t--) {
            ptrdiff_t next = least(t + 1, tokens - 1), ahead = most(t - 1, 0);
            const REAL *q = x->q + t * key, *k = x->k + t * key, *dy = dout + t * value + c;
            const REAL* error = errors + t * value + c;
            REAL *dv = u + t * u_row + c, dot = inner(d, q, k);
            ASK_FOR(0, x->q + ahead * key, d);
            ASK_FOR(0, x->k + ahead * key, d);
            ASK_FOR(0, dout + ahead * value + c, columns);
            ASK_FOR(0, errors + ahead * value + c, columns);
            ASK_FOR(1, dk + ahead * dk_row, d);
            ASK_FOR(1, u + ahead * u_row + c, columns);
            scale_row(columns, x->b[t], error, w);
            Step step = {.a = x->a[next],
                .left = {x->q + next * key, x->k + next * key},
                .right = {later, later + wide},
                .times = {k},
                .sums = {sums},
                .weights = w,
                .across = dk + t * dk_row,
                .adds = c > 0};
            delta_backward(d, columns, state, &step);
            vector of_start = {0}, of_along = {0}, of_b = {0};
            EACH_VECTOR(i, part, columns) {
                vector y = get(dy + i, part), slope = get(sums + i, part), w_i = get(w + i, part);
                of_start = multiply_add(slope, w_i, of_start);
                of_along = multiply_add(y, w_i, of_along);
                slope = multiply_add(y, splat(dot), slope);
                of_b = multiply_add(slope, get(error + i, part), of_b);
                slope *= x->b[t];
                put(later + wide + i, slope * -x->a[t], part);
                put(later + i, y * x->a[t], part);
                put(dv + i, slope, part);
            }
            starts[t] += sum_lanes(of_start);
            along[t] += sum_lanes(of_along);
            db[t] += sum_lanes(of_b);
            if (restarts(x, t))
                for (ptrdiff_t i = 0; i < d; i += SIDE) {
                    ptrdiff_t row = vectors_of(columns) * LANES;
                    turn(least(d - i, SIDE), columns, state + i * row, row, 1,
                        slopes + t / RESTART * size + i * e + c * SIDE);
                }
        }
    }
    for (ptrdiff_t c = 0, columns; c < d; c += columns) {
        columns = columns_of_tile(e, d - c);
        clear(e * wide, state);
        for (ptrdiff_t t = 0; t < tokens; t++) {
            ptrdiff_t ahead = least(t + 1, tokens - 1);
            const REAL *q = x->q + t * key + c, *k = x->k + t * key + c;
            REAL *to_q = dq + t * dq_row + c, *to_k = dk + t * dk_row + c;
            ASK_FOR(0, x->k + ahead * key + c, columns);
            ASK_FOR(0, dout + ahead * value, e);
            ASK_FOR(0, errors + ahead * value, e);
            ASK_FOR(0, u + ahead * u_row, e);
            ASK_FOR(1, dq + ahead * dq_row + c, columns);
            scale_row(e, x->b[t], errors + t * value, w);
            Step step = {.a = x->a[t],
                .left = {w},
                .right = {k},
                .times = {dout + t * value, u + t * u_row},
                .sums = {sums, sums + wide}};
            delta_again(e, columns, state, &step);
            vector of_end = {0};
            EACH_VECTOR(i, part, columns) {
                vector query = get(q + i, part), key_i = get(k + i, part);
                vector slope = get(sums + i, part), lost = get(sums + wide + i, part);
                of_end = multiply_add(slope, query, of_end) - lost * key_i;
                put(to_q + i, multiply_add(key_i, splat(along[t]), slope), part);
                put(to_k + i, get(to_k + i, part) + query * along[t] - lost, part);
            }
            ends[t] += sum_lanes(of_end);
            if (restarts(x, t))
                flows[t / RESTART + 1] +=
                    of_state(e, columns, state, c, slopes + t / RESTART * size);
        }
    }
    for (ptrdiff_t start = 0; start < tokens; start += RESTART) {
        ptrdiff_t end = least(start + RESTART, tokens), middle = (start + end) / 2;
        REAL sum = flows[start / RESTART];
        for (ptrdiff_t t = start; t < middle; sum += starts[t] - ends[t], t++) dlog_a[t] = sum;
        sum = flows[start / RESTART + 1];
        for (ptrdiff_t t = end - 1; t >= middle; t--) dlog_a[t] = sum += ends[t] - starts[t];
    }
    for (ptrdiff_t t = 0, gate = x->gates; t < tokens; t++, gate += x->heads) {
        // A closed gate's is 0 (or NaN), not what rounding leaves of its neighbours'.
        if (call->dlog_a) call->dlog_a[gate] = x->a[t] ? dlog_a[t] : dlog_a[t] * 0;
        if (call->db) call->db[gate] = db[t];
    }
}
