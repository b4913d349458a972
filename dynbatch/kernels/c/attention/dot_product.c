// Dot-product attention of sentences' queries over their own keys: kernels/attention/dot_product.py.
//
// SIDE queries of a head are worked on at a time. Scores have a row for each key and a column for
// each query, so that softmax goes through the keys, all queries at once, and no query's numbers
// meet another's. Keys come in tiles of KEYS, counted from the sentence's first key: a query's sums
// go through the keys it sees in one order, and tiles that it does not see change no bit of them.
//
// Source: Dao et al. 2022 (FlashAttention), arXiv:2205.14135: running maximum and sum of a query's
// scores, and scores made again in backward.
#include "attention/tiles.h"
#include "random.h"

enum { KEYS = 64 };

// A sentence, as Python's table has it.
typedef struct {
    int64_t query, queries, key, keys;  // first row, and number of rows
    int64_t left, right;                // query i sees keys i - left … i + right
    int64_t visible, step;  // address of the flags of keys, 0 for none; flags from query to query
    int64_t stream;         // of dropout
    int64_t page;           // the first of its pages
} Sentence;

// A call, as Python's table has it. Unwanted arrays are NULL.
typedef struct {
    const REAL *queries, *keys, *values;
    REAL* out;             // backward reads its gradient
    REAL* log_sums;        // (N_q, heads)
    const REAL* bias;      // (heads, distances) of i - j, `zero` is the place of 0
    const int64_t* pages;  // addresses of each page's keys and values; NULL where rows are one run
    const Sentence* sentences;
    const REAL* scales;
    REAL *dqueries, *dkeys, *dvalues, *dbias;
    int64_t query_row, key_row, value_row, out_row;
    int64_t heads, shared, key_width, value_width, distances, zero, drops, page_rows, accumulate;
    int64_t dquery_row, dkey_row, dvalue_row;
    double p;
} Call;

// One head of a sentence.
typedef struct {
    const Call* call;
    Sentence of;
    const REAL *q, *k, *v;
    REAL* out;
    REAL* log_sums;
    const REAL* bias;
    REAL scale;
    ptrdiff_t head;
} Head;

static Head head_of(const Call* call, ptrdiff_t sentence, ptrdiff_t head) {
    Sentence of = call->sentences[sentence];
    ptrdiff_t width = call->key_width, values = call->value_width, group = head / call->shared;
    return (Head){call, of, call->queries + of.query * call->query_row + head * width,
        call->keys + of.key * call->key_row + group * width,
        call->values + of.key * call->value_row + group * values,
        call->out + of.query * call->out_row + head * values,
        call->log_sums ? call->log_sums + of.query * call->heads + head : NULL,
        call->bias ? call->bias + head * call->distances + call->zero : NULL,
        call->scales[sentence], head};
}

// Queries `first` to first + count - 1, and the keys from `low` to `high` that one of them sees.
typedef struct {
    ptrdiff_t first, count, low, high;
} Span;

static Span span_of(const Sentence* of, ptrdiff_t first) {
    ptrdiff_t count = least(of->queries - first, SIDE);
    ptrdiff_t low = least(of->keys, most(0, first - of->left));
    return (Span){first, count, low, most(low, least(of->keys, first + count + of->right))};
}

// scores[j, i] = scale * rows_i · others_j, over `width` columns. `turned` is what `turn` made of
// the rows; if they are wider than DEPTH it is made anew, part by part.
static void scores_of(ptrdiff_t count, const REAL* rows, ptrdiff_t row, ptrdiff_t keys,
    const REAL* others, ptrdiff_t other, ptrdiff_t width, REAL scale, REAL* turned, int is_turned,
    REAL* scores) {
    ptrdiff_t c = 0;
    do {
        ptrdiff_t part = least(width - c, DEPTH);
        if (!is_turned || width > DEPTH) turn(count, part, rows + c, row, scale, turned);
        product(keys, (count + LANES - 1) & -LANES, part, others + c, other, 1, turned, SIDE,
            scores, SIDE, c > 0);
        c += part;
    } while (c < width);
}

// The scores of one query: keys are turned rather than queries, so that a vector has those of many
// keys. The sums are the same.
static void scores_of_one(const REAL* query, ptrdiff_t keys, const REAL* others, ptrdiff_t other,
    ptrdiff_t width, REAL scale, REAL* turned, REAL* scores) {
    REAL scaled[DEPTH], row[KEYS];
    ptrdiff_t c = 0;
    do {
        ptrdiff_t part = least(width - c, DEPTH);
        EACH_VECTOR(i, n, part) put(scaled + i, get(query + c + i, n) * scale, n);
        for (ptrdiff_t j = 0; j < keys; j += SIDE) {
            ptrdiff_t count = least(keys - j, SIDE);
            turn(count, part, others + j * other + c, other, 1, turned);
            product(1, count, part, scaled, 0, 1, turned, SIDE, row + j, 0, c > 0);
        }
        c += part;
    } while (c < width);
    for (ptrdiff_t j = 0; j < keys; j++) scores[j * SIDE] = row[j];
}

// Add the bias to scores of keys from `low` on, and put -infinity where a query does not see a key.
static __attribute__((noinline)) void extend(
    const Head* head, Span span, ptrdiff_t low, ptrdiff_t keys, REAL* scores) {
    const Sentence* of = &head->of;
    const uint8_t* visible = (const uint8_t*)of->visible;
    for (ptrdiff_t j = 0; j < keys; j++) {
        ptrdiff_t key = low + j, from = key - of->right, to = key + of->left;
        int is_partial = from > span.first || to < span.first + span.count - 1;
        if (!head->bias && !is_partial) continue;
        EACH_VECTOR(i, n, span.count) {
            vector x = load(scores + j * SIDE + i);
            if (head->bias) x += get(head->bias + span.first + i - key, n);
            if (is_partial) {
                mask seen = first_lanes(to - span.first - i + 1);
                seen &= ~first_lanes(from - span.first - i);
                x = choose(seen, x, splat(-INFINITY));
            }
            store(scores + j * SIDE + i, x);
        }
    }
    for (ptrdiff_t i = 0; visible && i < span.count; i++) {
        const uint8_t* flags = visible + (span.first + i) * of->step + low;
        for (ptrdiff_t j = 0; j < keys; j++)
            if (!flags[j]) scores[j * SIDE + i] = -INFINITY;
    }
}

// e^x for x <= 0, but 0 where that has too few digits: hidden scores take no time then.
INLINE vector weight_of(vector x) {
    vector least_power = splat(sizeof(REAL) == 4 ? -87 : -708);
    mask is_small = x < least_power;
    return choose(is_small, splat(0), exp_of(choose(is_small, splat(0), x)));
}

// p = exp(score - peak) of a tile of keys, for a vector of queries: their maxima and sums go on,
// `factors` is by what to multiply what was summed up to here.
static __attribute__((noinline)) void soften(
    ptrdiff_t keys, REAL* scores, REAL* peaks, REAL* totals, REAL* factors) {
    vector before = load(peaks), peak = before;
    for (ptrdiff_t j = 0; j < keys; j++) peak = larger(load(scores + j * SIDE), peak);
    vector shift = choose(peak == -INFINITY, splat(0), peak), factor = weight_of(before - shift);
    vector total = load(totals) * factor;
    for (ptrdiff_t j = 0; j < keys; j++) {
        vector p = weight_of(load(scores + j * SIDE) - shift);
        store(scores + j * SIDE, p);
        total += p;
    }
    store(peaks, peak);
    store(totals, total);
    store(factors, factor);
}

// Multiply numbers of keys from `low` on by dropout's factors. A pair's number counts heads, then
// queries, then keys, all of the sentence.
static __attribute__((noinline)) void drop(
    const Head* head, Span span, ptrdiff_t low, ptrdiff_t keys, REAL* x) {
    const Sentence* of = &head->of;
    for (ptrdiff_t i = 0; i < span.count; i += LANES) {
        uint32_t row = (uint32_t)(head->head * of->queries + span.first + i);
        words numbers = (numbers_from(0) + row) * (uint32_t)of->keys + (uint32_t)low;
        for (ptrdiff_t j = 0; j < keys; j++, numbers += 1u) {
            REAL* at = x + j * SIDE + i;
            store(at, load(at) * kept(numbers, (uint32_t)of->stream, head->call->p));
        }
    }
}

static int is_extended(const Head* head, Span span) {
    const Sentence* of = &head->of;
    return head->bias || of->visible || span.low + of->left < span.first + span.count - 1 ||
           span.high - 1 - of->right > span.first;
}

// Keys and values from row `key` on, in a run or in their page.
static void find(const Head* head, ptrdiff_t key, const REAL** k, const REAL** v) {
    const Call* call = head->call;
    if (!call->pages) {
        *k = head->k + key * call->key_row, *v = head->v + key * call->value_row;
        return;
    }
    const int64_t* page = call->pages + 2 * (head->of.page + key / call->page_rows);
    ptrdiff_t row = key % call->page_rows, group = head->head / call->shared;
    *k = (const REAL*)page[0] + row * call->key_row + group * call->key_width;
    *v = (const REAL*)page[1] + row * call->value_row + group * call->value_width;
}

static void attend(const Head* head) {
    const Call* call = head->call;
    REAL turned[DEPTH * SIDE], scores[KEYS * SIDE], peaks[SIDE], totals[SIDE], factors[SIDE];
    ptrdiff_t width = call->value_width;
    for (ptrdiff_t first = 0; first < head->of.queries; first += SIDE) {
        Span span = span_of(&head->of, first);
        const REAL* q = head->q + first * call->query_row;
        REAL* out = head->out + first * call->out_row;
        int extends = is_extended(head, span);
        for (ptrdiff_t i = 0; i < SIDE; i++) peaks[i] = -INFINITY, totals[i] = 0;
        for (ptrdiff_t start = span.low, end; start < span.high; start = end) {
            int is_first = start == span.low;
            end = least(span.high, start / KEYS * KEYS + KEYS);
            ptrdiff_t keys = end - start;
            const REAL *k, *v;
            find(head, start, &k, &v);
            if (span.count == 1)
                scores_of_one(
                    q, keys, k, call->key_row, call->key_width, head->scale, turned, scores);
            else
                scores_of(span.count, q, call->query_row, keys, k, call->key_row, call->key_width,
                    head->scale, turned, !is_first, scores);
            if (extends) extend(head, span, start, keys, scores);
            for (ptrdiff_t i = 0; i < span.count; i += LANES)
                soften(keys, scores + i, peaks + i, totals + i, factors + i);
            if (call->drops) drop(head, span, start, keys, scores);
            for (ptrdiff_t i = 0; !is_first && i < span.count; i++)
                if (factors[i] != 1) EACH_VECTOR(c, n, width) {
                        REAL* at = out + i * call->out_row + c;
                        put(at, get(at, n) * factors[i], n);
                    }
            product(span.count, width, keys, scores, 1, SIDE, v, call->value_row, out,
                call->out_row, !is_first);
        }
        for (ptrdiff_t i = 0; i < SIDE; i += LANES) {
            vector total = load(totals + i), peak = load(peaks + i);
            store(factors + i, choose(total == 0, splat(0), 1 / total));
            store(totals + i, choose(total == 0, splat(INFINITY), log_of(total) + peak));
        }
        for (ptrdiff_t i = 0; i < span.count; i++) {
            if (head->log_sums) head->log_sums[(first + i) * call->heads] = totals[i];
            EACH_VECTOR(c, n, width) {
                REAL* at = out + i * call->out_row + c;
                put(at, span.low < span.high ? get(at, n) * factors[i] : splat(0), n);
            }
        }
    }
}

// out_i = Σ_j p_ij v_j, p_ij = softmax_j(scale q_i · k_j + bias_ij), of the heads of keys `group` to
// group + groups - 1: numbers `first` to last - 1 of those, sentence by sentence.
EXPORT void dot_attention(
    ptrdiff_t first, ptrdiff_t last, ptrdiff_t group, ptrdiff_t groups, const int64_t* table) {
    const Call* call = (const Call*)table;
    for (ptrdiff_t n = first; n < last; n++)
        for (ptrdiff_t s = 0; s < call->shared; s++) {
            Head head = head_of(call, n / groups, (group + n % groups) * call->shared + s);
            attend(&head);
        }
}

// ds = p (dp - Σ_j p dp) of a vector of queries, times `scale`, in place of dp. `dbias`, of the
// queries and the first key, has ds added for the first n queries.
static __attribute__((noinline)) void slopes(
    ptrdiff_t keys, ptrdiff_t n, const REAL* p, REAL* dp, REAL scale, REAL* dbias) {
    vector mean = {0};
    for (ptrdiff_t j = 0; j < keys; j++) mean += load(p + j * SIDE) * load(dp + j * SIDE);
    for (ptrdiff_t j = 0; j < keys; j++) {
        vector slope = load(p + j * SIDE) * (load(dp + j * SIDE) - mean);
        store(dp + j * SIDE, slope * scale);
        if (dbias) put(dbias - j, get(dbias - j, n) + slope, n);
    }
}

static __attribute__((noinline)) void weigh(ptrdiff_t keys, REAL* scores, const REAL* log_sums) {
    vector shift = load(log_sums);
    for (ptrdiff_t j = 0; j < keys; j++)
        store(scores + j * SIDE, weight_of(load(scores + j * SIDE) - shift));
}

static void attend_backward(const Head* head, REAL* p) {
    const Call* call = head->call;
    REAL turned[DEPTH * SIDE], log_sums[SIDE];
    ptrdiff_t group = head->head / call->shared, width = call->key_width, tall = call->value_width;
    ptrdiff_t key = head->of.key, query = head->of.query;
    for (ptrdiff_t first = 0; first < head->of.queries; first += SIDE) {
        Span span = span_of(&head->of, first);
        ptrdiff_t keys = span.high - span.low, count = span.count;
        const REAL *q = head->q + first * call->query_row, *dy = head->out + first * call->out_row;
        const REAL *k = head->k + span.low * call->key_row,
                   *v = head->v + span.low * call->value_row;
        REAL* dp = p + keys * SIDE;
        for (ptrdiff_t i = 0; i < SIDE; i++)
            log_sums[i] = i < count ? head->log_sums[(first + i) * call->heads] : INFINITY;
        scores_of(
            count, q, call->query_row, keys, k, call->key_row, width, head->scale, turned, 0, p);
        if (is_extended(head, span)) extend(head, span, span.low, keys, p);
        for (ptrdiff_t i = 0; i < count; i += LANES) weigh(keys, p + i, log_sums + i);
        if (call->dqueries || call->dkeys || call->dbias) {
            scores_of(count, dy, call->out_row, keys, v, call->value_row, tall, 1, turned, 0, dp);
            if (call->drops) drop(head, span, span.low, keys, dp);
            REAL* dbias = call->dbias ? call->dbias + head->head * call->distances + call->zero +
                                            first - span.low
                                      : NULL;
            EACH_VECTOR(i, n, count)
            slopes(keys, n, p + i, dp + i, head->scale, dbias ? dbias + i : NULL);
        }
        if (call->dqueries) {
            REAL* dq = call->dqueries + (query + first) * call->dquery_row + head->head * width;
            product(count, width, keys, dp, 1, SIDE, k, call->key_row, dq, call->dquery_row, 0);
        }
        if (call->dkeys) {
            REAL* dk = call->dkeys + (key + span.low) * call->dkey_row + group * width;
            product(keys, width, count, dp, SIDE, 1, q, call->query_row, dk, call->dkey_row, 1);
        }
        if (call->dvalues) {
            REAL* dv = call->dvalues + (key + span.low) * call->dvalue_row + group * tall;
            if (call->drops) drop(head, span, span.low, keys, p);
            product(keys, tall, count, p, SIDE, 1, dy, call->out_row, dv, call->dvalue_row, 1);
        }
    }
}

static void clear(ptrdiff_t rows, ptrdiff_t row, ptrdiff_t width, REAL* x) {
    for (ptrdiff_t i = 0; x && i < rows; i++) memset(x + i * row, 0, (size_t)width * sizeof(REAL));
}

// With p = exp(score - log_sum) and dp_ij = dout_i · v_j: ds = p (dp - Σ_j p dp), dq = scale ds k,
// dk = scale dsᵀ q, dv = pᵀ dout, and the bias's ds of each distance. `out` is dout. A head of keys
// sums over the heads of queries that read it, and over their queries, in order. `part` is which part
// of `room` this call has, of `size` elements.
EXPORT void dot_attention_backward(ptrdiff_t first, ptrdiff_t last, ptrdiff_t group,
    ptrdiff_t groups, const int64_t* table, REAL* room) {
    const Call* call = (const Call*)table;
    for (ptrdiff_t n = first; n < last; n++) {
        ptrdiff_t own = group + n % groups;
        const Sentence* of = call->sentences + n / groups;
        if (!call->accumulate) {
            REAL *dk = call->dkeys, *dv = call->dvalues;
            ptrdiff_t width = call->key_width, tall = call->value_width;
            clear(of->keys, call->dkey_row, width,
                dk ? dk + of->key * call->dkey_row + own * width : dk);
            clear(of->keys, call->dvalue_row, tall,
                dv ? dv + of->key * call->dvalue_row + own * tall : dv);
        }
        for (ptrdiff_t s = 0; s < call->shared; s++) {
            Head head = head_of(call, n / groups, own * call->shared + s);
            attend_backward(&head, room);
        }
    }
}
