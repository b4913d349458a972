// Dot-product attention of sentences' queries over their own keys: kernels/attention/dot_product.py.
//
// SIDE queries of a head are worked on at a time. Scores have a row for each key and a column for
// each query, so that softmax goes through the keys, all queries at once, and no query's numbers
// meet another's. Keys come in tiles of KEYS, counted from the sentence's first key: a query's sums
// go through the keys it sees in one order, and tiles that it does not see change no bit of them;
// nor do pages, from which the rows of a tile come part by part.
//
// Source: Dao et al. 2022 (FlashAttention), arXiv:2205.14135: running maximum and sum of a query's
// scores, and scores made again in backward.
#include "attention/scores.h"

// p = exp(score - peak) of a tile of keys, for a vector of queries: their maxima and sums go on,
// `factors` is by what to multiply what was summed up to here.
static __attribute__((noinline)) void soften(
    ptrdiff_t keys, REAL* scores, REAL* peaks, REAL* totals, REAL* factors) {
    vector before = load(peaks), peak = before;
    for (ptrdiff_t j = 0; j < keys; j++) peak = larger(load(scores + j * SIDE), peak);
    vector shift = choose(peak == -INFINITY, splat(0), peak), factor = weight_of(before - shift);
    vector total = {0};  // of the tile first, which rounds less than one long sum
    for (ptrdiff_t j = 0; j < keys; j++) {
        vector p = weight_of(load(scores + j * SIDE) - shift);
        store(scores + j * SIDE, p);
        total += p;
    }
    store(peaks, peak);
    store(totals, multiply_add(load(totals), factor, total));
    store(factors, factor);
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
            end = least(span.high, start / KEYS * KEYS + KEYS);
            ptrdiff_t keys = end - start;
            Rows k, v;
            for (ptrdiff_t key = start; key < end; key += k.n) {
                REAL* at = scores + (key - start) * SIDE;
                find(head, key, end, &k, &v);
                if (span.count == 1) scores_of_one(q, k, call->key_width, head->scale, turned, at);
                else
                    scores_of(span.count, q, call->query_row, k, call->key_width, head->scale,
                        turned, key > span.low, at);
            }
            if (call->softcap > 0) cap(span.count, keys, (REAL)call->softcap, scores, NULL);
            if (extends) extend(head, span, start, keys, scores);
            for (ptrdiff_t i = 0; i < span.count; i += LANES)
                soften(keys, scores + i, peaks + i, totals + i, factors + i);
            if (call->drops) drop(head, span, start, keys, scores);
            for (ptrdiff_t i = 0; start > span.low && i < span.count; i++)
                if (factors[i] != 1) EACH_VECTOR(c, n, width) {
                        REAL* at = out + i * call->out_row + c;
                        put(at, get(at, n) * factors[i], n);
                    }
            for (ptrdiff_t key = start; key < end; key += v.n) {
                find(head, key, end, &k, &v);
                weigh_rows(span.count, scores + (key - start) * SIDE, v, width, out, call->out_row,
                    key > span.low);
            }
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

// out_i = Σ_j p_ij v_j, p_ij = softmax_j(scale q_i · k_j + bias_ij), a softcap before the bias, of the heads of keys `group` to
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

// ds = p (dp - Σ_j p dp / Σ_j p) of a vector of queries, times `scale`, in place of dp. `dbias`, of the
// queries and the first key, has ds added for the first n queries.
static __attribute__((noinline)) void slopes(
    ptrdiff_t keys, ptrdiff_t n, const REAL* p, REAL* dp, REAL scale, REAL* dbias) {
    // Weights add up to 1 but for the rounding of log_sum. Where one key has nearly all, slopes are
    // what is left of equal numbers, so the mean is that of the weights as they are.
    vector mean = {0}, weight = {0};
    for (ptrdiff_t start = 0; start < keys; start += KEYS) {
        vector sum = {0}, total = {0};
        for (ptrdiff_t j = start; j < least(keys, start + KEYS); j++) {
            sum = multiply_add(load(p + j * SIDE), load(dp + j * SIDE), sum);
            total += load(p + j * SIDE);
        }
        mean += sum, weight += total;
    }
    mean = choose(weight > 0, mean / weight, mean);
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

// Add the slopes of some queries and all keys that they see to the gradient of their matrix, or to the
// sums of the table's rows.
static __attribute__((noinline)) void add_slopes(
    const Head* head, Span span, const REAL* slopes, double* sums) {
    const Sentence* of = &head->of;
    ptrdiff_t bytes = head->call->feature_bytes, keys = span.high - span.low;
    REAL turned[SIDE * SIDE];
    for (ptrdiff_t i = 0; bytes && i < span.count; i++) {
        const char* at = (const char*)of->pairs + ((span.first + i) * of->keys + span.low) * bytes;
        for (ptrdiff_t j = 0; j < keys; j++, at += bytes) {
            ptrdiff_t row = bytes == 1   ? *(const uint8_t*)at
                            : bytes == 2 ? *(const uint16_t*)at
                                         : *(const uint32_t*)at;
            sums[row] += (double)slopes[j * SIDE + i];
        }
    }
    for (ptrdiff_t low = 0; !bytes && low < keys; low += SIDE) {
        ptrdiff_t count = least(keys - low, SIDE);
        REAL* to =
            (REAL*)of->dpairs + head->head * of->step + span.first * of->keys + span.low + low;
        turn(count, span.count, slopes + low * SIDE, SIDE, 1, turned);
        for (ptrdiff_t i = 0; i < span.count; i++, to += of->keys)
            EACH_VECTOR(j, n, count) put(to + j, get(to + j, n) + load(turned + i * SIDE + j), n);
    }
}

static void attend_backward(const Head* head, double* sums, REAL* p) {
    const Call* call = head->call;
    int has_pairs = head->of.dpairs != 0;
    REAL turned[DEPTH * SIDE], log_sums[SIDE];
    ptrdiff_t group = head->head / call->shared, width = call->key_width, tall = call->value_width;
    ptrdiff_t key = head->of.key, query = head->of.query;
    for (ptrdiff_t first = 0; first < head->of.queries; first += SIDE) {
        Span span = span_of(&head->of, first);
        ptrdiff_t keys = span.high - span.low, count = span.count;
        const REAL *q = head->q + first * call->query_row, *dy = head->out + first * call->out_row;
        const REAL *k = head->k + span.low * call->key_row,
                   *v = head->v + span.low * call->value_row;
        REAL *dp = p + keys * SIDE, *of_cap = dp + keys * SIDE;
        for (ptrdiff_t i = 0; i < SIDE; i++)
            log_sums[i] = i < count ? head->log_sums[(first + i) * call->heads] : INFINITY;
        scores_of(count, q, call->query_row, (Rows){k, keys, call->key_row, 0}, width, head->scale,
            turned, 0, p);
        if (call->softcap > 0) cap(count, keys, (REAL)call->softcap, p, of_cap);
        if (is_extended(head, span)) extend(head, span, span.low, keys, p);
        for (ptrdiff_t i = 0; i < count; i += LANES) weigh(keys, p + i, log_sums + i);
        if (call->dqueries || call->dkeys || call->dbias || has_pairs) {
            Rows others = {v, keys, call->value_row, 0};
            scores_of(count, dy, call->out_row, others, tall, 1, turned, 0, dp);
            if (call->drops) drop(head, span, span.low, keys, dp);
            REAL* dbias = call->dbias ? call->dbias + head->head * call->distances + call->zero +
                                            first - span.low
                                      : NULL;
            EACH_VECTOR(i, n, count)
            slopes(keys, n, p + i, dp + i, has_pairs ? 1 : head->scale, dbias ? dbias + i : NULL);
            if (has_pairs) add_slopes(head, span, dp, sums);
            for (ptrdiff_t j = 0; has_pairs && j < keys; j++) EACH_VECTOR(i, n, count)
            store(dp + j * SIDE + i, load(dp + j * SIDE + i) * head->scale);
            for (ptrdiff_t i = 0; call->softcap > 0 && i < keys * SIDE; i += LANES)
                store(dp + i, load(dp + i) * load(of_cap + i));
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
// dk = scale dsᵀ q, dv = pᵀ dout, and the bias's ds of each distance, pair or feature; a softcap's slope
// times ds is in its place in dq and dk. `out` is dout. A head of keys sums over the heads of queries
// that read it, and over their queries, in order. `room` is for the sums of a table's rows, for p and ds
// of SIDE queries and the keys that they see, and with a softcap for its slopes.
EXPORT void dot_attention_backward(ptrdiff_t first, ptrdiff_t last, ptrdiff_t group,
    ptrdiff_t groups, const int64_t* table, REAL* room) {
    const Call* call = (const Call*)table;
    ptrdiff_t rows = call->feature_bytes ? call->distances : 0;
    double* sums = (double*)(((uintptr_t)room + 7) / 8 * 8);  // REAL may be half as wide
    if (rows) room = (REAL*)(sums + rows);
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
            REAL* dtable = rows && of->dpairs ? (REAL*)of->dpairs + head.head * of->step : NULL;
            if (dtable) memset(sums, 0, (size_t)rows * sizeof(double));
            attend_backward(&head, sums, room);
            for (ptrdiff_t r = 0; dtable && r < rows; r++) dtable[r] += (REAL)sums[r];
        }
    }
}
