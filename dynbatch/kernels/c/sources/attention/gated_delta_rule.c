// The gated delta rule: kernels/attention/gated_delta_rule.py, whose formulas and names these are.
//
// One head of a sentence at a time, chunk by chunk, in a thread's room: a state is as large as a
// first-level cache, and what a chunk needs besides stays in the second. Matrices of pairs of
// tokens (ROW numbers a row) are lower triangles, whose products skip what lies above by tiles of
// HEIGHT rows: a triangle has zeros up to the end of a diagonal tile, and nothing beyond. Sentences
// of more than `longest` tokens go token by token instead.
#include "attention/delta_steps.h"

enum { ROW = 64, PAIRS = ROW * ROW };  // most tokens of a chunk

// The tokens of a chunk in one head: rows where they lie, `key_row` and `value_row` apart.
typedef struct {
    const REAL *q, *k, *v;
    ptrdiff_t n, d, e, key_row, value_row, row, head, heads;  // `row` is the first token's
    REAL b[ROW], before[ROW];
    const REAL* after;  // the last row of `decays`
    REAL* decays;
    int has_b;
} Chunk;

// The end of the tile that has row i of a triangle.
static ptrdiff_t tile_end(ptrdiff_t i, ptrdiff_t n) {
    return least(n, i / HEIGHT * HEIGHT + HEIGHT);
}

static void chunk_of(const Call* call, ptrdiff_t row, ptrdiff_t n, ptrdiff_t head, Chunk* x) {
    ptrdiff_t heads = call->heads, gates = row * heads + head;
    REAL a[ROW], passed = 1;
    x->n = n, x->d = call->d, x->e = call->e, x->row = row, x->head = head, x->heads = heads;
    x->key_row = heads * x->d, x->value_row = heads * x->e;
    x->q = call->q + gates * x->d, x->k = call->k + gates * x->d, x->v = call->v + gates * x->e;
    x->has_b = call->b != NULL;
    for (ptrdiff_t i = 0; i < n; i++) {
        a[i] = call->log_a[gates + i * heads];
        x->b[i] = x->has_b ? call->b[gates + i * heads] : 1;
    }
    EACH_VECTOR(i, part, n) put(a + i, exp_of(get(a + i, part)), part);
    x->after = x->decays + (n - 1) * ROW;
    for (ptrdiff_t i = 0; i < n; i++) {
        REAL* decay = x->decays + i * ROW;
        for (ptrdiff_t j = 0; j < ROW; j += LANES)
            store(decay + j, i ? load(decay - ROW + j) * a[i] : splat(0));
        decay[i] = 1;
        x->before[i] = passed *= a[i];
    }
}

// rows, `stride` apart, turned into columns: blocks of SIDE columns, `width` rows each.
static void turn_all(ptrdiff_t n, ptrdiff_t width, const REAL* rows, ptrdiff_t stride, REAL* to) {
    for (ptrdiff_t j = 0; j < n; j += SIDE)
        turn(least(n - j, SIDE), width, rows + j * stride, stride, 1, to + j * width);
}

// out_ij = x_i · y_j for j up to the end of i's tile, where y is `turned`.
static void dots(
    ptrdiff_t n, ptrdiff_t width, const REAL* x, ptrdiff_t x_row, const REAL* turned, REAL* out) {
    for (ptrdiff_t i = 0; i < n; i += HEIGHT) {
        ptrdiff_t rows = least(n - i, HEIGHT), end = i + rows;
        for (ptrdiff_t j = 0; j < end; j += SIDE)
            product(rows, least(end - j, SIDE), width, x + i * x_row, x_row, 1, turned + j * width,
                SIDE, out + i * ROW + j, ROW, 0);
    }
}

// out_i = x_i yᵀ, where y (columns, width) is `turned`.
static void times_turned(ptrdiff_t n, ptrdiff_t columns, ptrdiff_t width, const REAL* x,
    ptrdiff_t x_row, const REAL* turned, REAL* out) {
    for (ptrdiff_t j = 0; j < columns; j += SIDE)
        product(n, least(columns - j, SIDE), width, x, x_row, 1, turned + j * width, SIDE, out + j,
            columns, 0);
}

// out_i += Σ_j pairs_ij x_j for j <= i
static void add_lower(ptrdiff_t n, ptrdiff_t width, const REAL* pairs, const REAL* x,
    ptrdiff_t x_row, REAL* out, ptrdiff_t out_row, int adds) {
    for (ptrdiff_t i = 0; i < n; i += HEIGHT) {
        ptrdiff_t rows = least(n - i, HEIGHT);
        product(rows, width, i + rows, pairs + i * ROW, ROW, 1, x, x_row, out + i * out_row,
            out_row, adds);
    }
}

// out_j += Σ_i pairs_ij x_i for i >= j
static void add_upper(ptrdiff_t n, ptrdiff_t width, const REAL* pairs, const REAL* x,
    ptrdiff_t x_row, REAL* out, ptrdiff_t out_row, int adds) {
    for (ptrdiff_t j = 0; j < n; j += HEIGHT)
        product(least(n - j, HEIGHT), width, n - j, pairs + j * ROW + j, 1, ROW, x + j * x_row,
            x_row, out + j * out_row, out_row, adds);
}

static void copy_rows(
    ptrdiff_t n, ptrdiff_t width, const REAL* x, ptrdiff_t x_row, REAL* to, ptrdiff_t to_row) {
    for (ptrdiff_t i = 0; i < n; i++) EACH_VECTOR(c, part, width)
    put(to + i * to_row + c, get(x + i * x_row + c, part), part);
}

// to_i = sign factors_i x_i
static void scale_rows(ptrdiff_t n, ptrdiff_t width, REAL sign, const REAL* factors, const REAL* x,
    ptrdiff_t x_row, REAL* to, ptrdiff_t to_row) {
    for (ptrdiff_t i = 0; i < n; i++) EACH_VECTOR(c, part, width)
    put(to + i * to_row + c, get(x + i * x_row + c, part) * (sign * factors[i]), part);
}

static void scale(ptrdiff_t size, REAL factor, const REAL* x, REAL* to) {
    EACH_VECTOR(i, part, size) put(to + i, get(x + i, part) * factor, part);
}

// out += factors_i part_i, and sums_i += factors_i part_i · x_i
static void add_part(ptrdiff_t n, ptrdiff_t width, REAL sign, const REAL* factors, const REAL* part,
    const REAL* x, ptrdiff_t x_row, REAL* out, ptrdiff_t out_row, REAL* sums) {
    for (ptrdiff_t i = 0; i < n; i++) {
        vector sum = {0};
        EACH_VECTOR(c, lanes, width) {
            vector y = get(part + i * width + c, lanes) * (sign * factors[i]);
            sum = multiply_add(y, get(x + i * x_row + c, lanes), sum);
            put(out + i * out_row + c, get(out + i * out_row + c, lanes) + y, lanes);
        }
        sums[i] += sum_lanes(sum);
    }
}

// P from Q Kᵀ, in place; or -M from K Kᵀ, without the diagonal.
static void decay(const Chunk* x, int is_strict, REAL* pairs) {
    for (ptrdiff_t i = 0; i < x->n; i++) {
        REAL *row = pairs + i * ROW, *decays = x->decays + i * ROW;
        vector sign = splat(is_strict ? -1 : 1);
        EACH_VECTOR(j, part, tile_end(i, x->n))
        put(row + j, get(row + j, part) * get(decays + j, part) * sign, part);
        if (is_strict) row[i] = 0;
    }
}

// E from E + M W, in place, and W = b E. `negative` is -M.
static void solve(const Chunk* x, const REAL* negative, REAL* errors, REAL* w) {
    ptrdiff_t e = x->e;
    for (ptrdiff_t i = 0; i < x->n; i += HEIGHT) {
        ptrdiff_t rows = least(x->n - i, HEIGHT);
        const REAL* tile = negative + i * ROW + i;
        if (i) product(rows, e, i, negative + i * ROW, ROW, 1, w, e, errors + i * e, e, 1);
        EACH_VECTOR(c, part, e) {
            vector done[HEIGHT];
            for (ptrdiff_t r = 0; r < rows; r++) {
                vector sum = get(errors + (i + r) * e + c, part);
                for (ptrdiff_t s = 0; s < r; s++)
                    sum = multiply_add(splat(tile[r * ROW + s]), done[s], sum);
                done[r] = sum * x->b[i + r];
                put(errors + (i + r) * e + c, sum, part);
                put(w + (i + r) * e + c, done[r], part);
            }
        }
    }
}

// dW from dW + Mᵀ U, in place, and U = b dW.
static void solve_backward(
    const Chunk* x, const REAL* negative, REAL* dw, REAL* u, ptrdiff_t u_row) {
    ptrdiff_t e = x->e, n = x->n;
    for (ptrdiff_t j = (n - 1) / HEIGHT * HEIGHT; j >= 0; j -= HEIGHT) {
        ptrdiff_t rows = least(n - j, HEIGHT), next = j + rows;
        const REAL* tile = negative + j * ROW + j;
        if (next < n)
            product(rows, e, n - next, negative + next * ROW + j, 1, ROW, u + next * u_row, u_row,
                dw + j * e, e, 1);
        EACH_VECTOR(c, part, e) {
            vector done[HEIGHT];
            for (ptrdiff_t r = rows - 1; r >= 0; r--) {
                vector sum = get(dw + (j + r) * e + c, part);
                for (ptrdiff_t s = rows - 1; s > r; s--)
                    sum = multiply_add(splat(tile[s * ROW + r]), done[s], sum);
                done[r] = sum * x->b[j + r];
                put(dw + (j + r) * e + c, sum, part);
                put(u + (j + r) * u_row + c, done[r], part);
            }
        }
    }
}

// Outputs of a chunk after `state`, if there is one, and the state after it, if `next` is wanted.
static void forward(const Call* call, const Chunk* x, const REAL* state, REAL* next, REAL* room) {
    ptrdiff_t n = x->n, d = x->d, e = x->e, row = x->value_row, place = x->row * row + x->head * e;
    REAL *scores = take(&room, PAIRS), *turned = take(&room, whole_blocks(n) * d);
    REAL* out = call->out + place;
    const REAL* w = x->v;
    ptrdiff_t w_row = row;
    turn_all(n, d, x->k, x->key_row, turned);
    if (x->has_b) {
        REAL *negative = scores, *errors = take(&room, n * e);  // before the scores are made
        REAL* solved = take(&room, n * e);
        if (state) {
            product(n, e, d, x->k, x->key_row, 1, state, e, solved, e, 0);
            for (ptrdiff_t i = 0; i < n; i++) EACH_VECTOR(c, part, e) {
                    vector product = get(solved + i * e + c, part) * x->before[i];
                    put(errors + i * e + c, get(x->v + i * row + c, part) - product, part);
                }
        } else copy_rows(n, e, x->v, row, errors, e);
        dots(n, d, x->k, x->key_row, turned, negative);
        decay(x, 1, negative);
        solve(x, negative, errors, solved);
        w = solved, w_row = e;
        if (call->errors) copy_rows(n, e, errors, e, call->errors + place, row);
    }
    dots(n, d, x->q, x->key_row, turned, scores);
    decay(x, 0, scores);
    if (state) {
        product(n, e, d, x->q, x->key_row, 1, state, e, out, row, 0);
        scale_rows(n, e, 1, x->before, out, row, out, row);
    }
    add_lower(n, e, scores, w, w_row, out, row, state != NULL);
    if (next) {
        if (state) scale(d * e, x->before[n - 1], state, next);
        scale_rows(n, d, 1, x->after, x->k, x->key_row, turned, d);
        product(d, e, n, turned, 1, d, w, w_row, next, e, state != NULL);
    }
}

// Items first, first + step, … of `count`: heads of sentences.
EXPORT void gated_delta_rule(
    ptrdiff_t first, ptrdiff_t step, ptrdiff_t count, const int64_t* table, REAL* room) {
    const Call* call = (const Call*)table;
    ptrdiff_t size = call->d * call->e;
    Chunk x = {.decays = take(&room, PAIRS)};
    for (ptrdiff_t item = first; item < count; item += step) {
        const int64_t* sentence = call->sentences + item / call->heads * 3;
        ptrdiff_t head = item % call->heads, tokens = sentence[1], number = sentence[2];
        REAL *state = NULL, *rest = room + size;
        if (tokens > call->longest) {
            forward_by_steps(call, sentence[0], tokens, head, room);
            continue;
        }
        for (ptrdiff_t done = 0; done < tokens; done += call->chunk, number++) {
            ptrdiff_t n = least(tokens - done, call->chunk);
            REAL* next = done + n == tokens ? NULL
                         : call->states     ? call->states + (number * call->heads + head) * size
                                            : room;
            chunk_of(call, sentence[0] + done, n, head, &x);
            forward(call, &x, state, next, rest);
            state = next;
        }
    }
}

// Gradients of a chunk before whose tokens there was `state`, if any, and after which the state has
// the gradient `dstate`, if `has_after`; then that of the state before it, in its place.
static void backward(
    const Call* call, const Chunk* x, const REAL* state, REAL* dstate, int has_after, REAL* room) {
    ptrdiff_t n = x->n, d = x->d, e = x->e, gates = x->row * x->heads + x->head;
    REAL *scores = take(&room, PAIRS), *negative = take(&room, PAIRS);
    REAL *slopes = take(&room, PAIRS), *others = take(&room, PAIRS);
    REAL* turned = take(&room, whole_blocks(n) * most(d, e));
    REAL* turned_state = take(&room, whole_blocks(d) * e);
    REAL *part = take(&room, n * d), *values = take(&room, n * e);
    REAL of_before[ROW] = {0}, of_after[ROW] = {0}, dlog_a[ROW], all = 0, sum = 0;
    // Rows are read and written where they lie: copying a head's costs more than what it saves.
    ptrdiff_t key = x->key_row, value = x->value_row, w_row = value;
    const REAL *q = x->q, *k = x->k, *dy = call->dout + gates * e, *w = x->v;
    ptrdiff_t dq_row = call->dq ? key : d, dk_row = call->dk ? key : d;
    REAL* dq = call->dq ? call->dq + gates * d : take(&room, n * d);
    REAL* dk = call->dk ? call->dk + gates * d : take(&room, n * d);
    ptrdiff_t u_row = call->dv ? value : e, dw_row = u_row;
    REAL *u = call->dv ? call->dv + gates * e : take(&room, n * e), *dw = u;
    turn_all(n, d, k, key, turned);
    dots(n, d, q, key, turned, scores);
    decay(x, 0, scores);
    // dW, U and W
    if (x->has_b) dw = values, dw_row = e;
    if (has_after) {
        scale_rows(n, d, 1, x->after, k, key, part, d);
        product(n, e, d, part, d, 1, dstate, e, dw, dw_row, 0);
    }
    add_upper(n, e, scores, dy, value, dw, dw_row, has_after);
    if (x->has_b) {
        const REAL* errors = call->errors + gates * e;
        dots(n, d, k, key, turned, negative);
        decay(x, 1, negative);
        solve_backward(x, negative, dw, u, u_row);
        if (call->db)
            for (ptrdiff_t i = 0; i < n; i++)
                call->db[gates + i * x->heads] = inner(e, dw + i * e, errors + i * value);
        scale_rows(n, e, 1, x->b, errors, value, values, e);
        w = values, w_row = e;
    }
    // Terms of pairs of tokens: `scores` becomes those that each gate between the two is a factor of.
    turn_all(n, e, w, w_row, turned);
    dots(n, e, dy, value, turned, slopes);
    if (x->has_b) dots(n, e, u, u_row, turned, others);
    for (ptrdiff_t i = 0; i < n; i++) EACH_VECTOR(j, lanes, tile_end(i, n)) {
            ptrdiff_t place = i * ROW + j;
            vector decays = get(x->decays + place, lanes), slope = get(slopes + place, lanes);
            vector terms = get(scores + place, lanes) * slope;
            put(slopes + place, slope * decays, lanes);
            if (x->has_b) {
                vector other = get(others + place, lanes);
                terms += get(negative + place, lanes) * other;
                put(others + place, -other * decays, lanes);
            }
            put(scores + place, terms, lanes);
        }
    add_lower(n, d, slopes, k, key, dq, dq_row, 0);
    add_upper(n, d, slopes, q, key, dk, dk_row, 0);
    if (x->has_b) {
        for (ptrdiff_t i = 0; i < n; i++) others[i * ROW + i] = 0;
        add_lower(n, d, others, k, key, dk, dk_row, 1);
        add_upper(n, d, others, k, key, dk, dk_row, 1);
    }
    // Terms of tokens with the states before and after the chunk, and of these with each other.
    if (state) {
        turn_all(d, e, state, e, turned_state);
        times_turned(n, d, e, dy, value, turned_state, part);
        add_part(n, d, 1, x->before, part, q, key, dq, dq_row, of_before);
        if (x->has_b) {
            times_turned(n, d, e, u, u_row, turned_state, part);
            add_part(n, d, -1, x->before, part, k, key, dk, dk_row, of_before);
        }
    }
    if (has_after) {
        turn_all(d, e, dstate, e, turned_state);
        times_turned(n, d, e, w, w_row, turned_state, part);
        add_part(n, d, 1, x->after, part, k, key, dk, dk_row, of_after);
        if (state) all = x->before[n - 1] * inner(d * e, dstate, state);
    }
    // d log a_t: terms (i, j) with j < t <= i, of tokens from t on, and of those before t.
    REAL columns[ROW];
    for (ptrdiff_t j = 0; j < ROW; j += LANES) store(columns + j, splat(0));
    for (ptrdiff_t t = n - 1; t >= 0; t--) {
        vector total = {0};
        EACH_VECTOR(j, lanes, tile_end(t, n)) {
            vector column = get(columns + j, lanes) + get(scores + t * ROW + j, lanes);
            put(columns + j, column, lanes);
            if (j < t) total += fill(column, least(t - j, LANES), 0);
        }
        sum += of_before[t];
        dlog_a[t] = sum + sum_lanes(total) + all;
    }
    sum = 0;
    for (ptrdiff_t t = 0; t < n && call->dlog_a; sum += of_after[t++])
        call->dlog_a[gates + t * x->heads] = dlog_a[t] + sum;
    if (state) {
        if (has_after) scale(d * e, x->before[n - 1], dstate, dstate);
        scale_rows(n, d, 1, x->before, q, key, part, d);
        product(d, e, n, part, 1, d, dy, value, dstate, e, has_after);
        if (x->has_b) {
            scale_rows(n, d, -1, x->before, k, key, part, d);
            product(d, e, n, part, 1, d, u, u_row, dstate, e, 1);
        }
    }
}

// Asks for rows of a group of heads, whole ones one after the other, as memory is fast: each head
// then reads or writes its parts, which lie apart, in the second-level cache.
#define FETCH(x, width, writes)                                              \
    if (x)                                                                   \
        for (ptrdiff_t i = 0; i < n; i++)                                    \
            for (ptrdiff_t c = 0; c < count * width; c += 64 / (REAL_BYTES)) \
    __builtin_prefetch(x + ((row + i) * call->heads + head) * width + c, writes, 2)

INLINE void fetch(  // inline, or GCC takes a call that has no effect away
    const Call* call, ptrdiff_t row, ptrdiff_t n, ptrdiff_t head, ptrdiff_t count) {
    FETCH(call->q, call->d, 0);
    FETCH(call->k, call->d, 0);
    if (!call->b) FETCH(call->v, call->e, 0);
    FETCH(call->errors, call->e, 0);
    FETCH(call->dout, call->e, 0);
    FETCH(call->dq, call->d, 1);
    FETCH(call->dk, call->d, 1);
    FETCH(call->dv, call->e, 1);
}

// Items first, first + step, … of `count`: groups of `group` heads of sentences.
EXPORT void gated_delta_rule_backward(
    ptrdiff_t first, ptrdiff_t step, ptrdiff_t count, const int64_t* table, REAL* room) {
    const Call* call = (const Call*)table;
    ptrdiff_t heads = call->heads, size = call->d * call->e, group = call->group;
    ptrdiff_t groups = (heads + group - 1) / group;
    Chunk x = {.decays = take(&room, PAIRS)};
    REAL* dstates = take(&room, group * size);
    for (ptrdiff_t item = first; item < count; item += step) {
        const int64_t* sentence = call->sentences + item / groups * 3;
        ptrdiff_t start = item % groups * group, end = least(start + group, heads);
        ptrdiff_t tokens = sentence[1], last = (tokens + call->chunk - 1) / call->chunk - 1;
        if (tokens > call->longest) {
            for (ptrdiff_t head = start; head < end; head++)
                backward_by_steps(call, sentence[0], tokens, head, dstates);
            continue;
        }
        for (ptrdiff_t c = last; c >= 0; c--) {
            ptrdiff_t done = c * call->chunk, number = sentence[2] + c - 1;
            ptrdiff_t n = least(tokens - done, call->chunk), row = sentence[0] + done;
            fetch(call, row, n, start, end - start);
            for (ptrdiff_t head = start; head < end; head++) {
                const REAL* state = c ? call->states + (number * heads + head) * size : NULL;
                chunk_of(call, row, n, head, &x);
                backward(call, &x, state, dstates + (head - start) * size, c < last, room);
            }
        }
    }
}
