// Scores of dot-product attention, forward and backward: what they are made of, and masks.
#include "attention/tiles.h"
#include "random.h"

enum { KEYS = 64 };

// A sentence, as Python's table has it.
typedef struct {
    int64_t query, queries, key, keys;  // first row, and number of rows
    int64_t left, right;                // query i sees keys i - left … i + right
    int64_t visible, across;  // address of the flags of keys, 0 for none; flags from query to query
    int64_t stream;           // of dropout
    int64_t page;             // the first of its pages
    int64_t start;            // the position of its first query
    int64_t split, gap;       // keys from `split` on lie `gap` rows further back in its pages
    int64_t pairs;   // address of its pairs' numbers, or features, query by query; 0 for none
    int64_t step;    // from a head's numbers of pairs to the next head's; 0: all have the same
    int64_t dpairs;  // address of the gradient of these numbers, or of the table; 0 for none
} Sentence;

// A call, as Python's table has it. Unwanted arrays are NULL.
typedef struct {
    const REAL *queries, *keys, *values;
    REAL* out;       // backward reads its gradient
    REAL* log_sums;  // (N_q, heads)
    // (heads, distances) of i - j, `zero` is the place of 0; or (heads, rows) for features of pairs
    const REAL* bias;
    const int64_t* pages;  // addresses of each page's keys and values; NULL where rows are one run
    const Sentence* sentences;
    const REAL* scales;
    REAL *dqueries, *dkeys, *dvalues, *dbias;
    int64_t query_row, key_row, value_row, out_row;
    int64_t heads, shared, key_width, value_width, distances, zero;
    int64_t feature_bytes;  // 0 where a sentence's pairs have numbers of their own, if any
    int64_t drops;
    int64_t page_rows, is_short;  // numbers in pages are bfloat16
    int64_t accumulate;
    int64_t dquery_row, dkey_row, dvalue_row;
    double p, softcap;  // 0 for none
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
        !call->bias ? NULL
        : of.pairs  ? call->bias + head * of.step
                    : call->bias + head * call->distances + call->zero + of.start,
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

// `product` where b is of bfloat16, and `turn` of it.
static void product_of_short(PRODUCT) { product_of(1, ITS_PRODUCT); }
static __attribute__((noinline)) void turn_short(
    ptrdiff_t count, ptrdiff_t width, const void* rows, ptrdiff_t stride, REAL* to) {
    turn_kept(1, count, width, rows, stride, 1, to);
}

// Keys or values that lie side by side in a run or a page: n rows of `stride` numbers.
typedef struct {
    const void* first;
    ptrdiff_t n, stride;
    int is_short;
} Rows;

static const void* from_column(Rows rows, ptrdiff_t c) {
    return (const char*)rows.first + c * BYTES_KEPT(rows.is_short);
}

// Columns c to c + width - 1 of bfloat16, as REAL in `room`.
static __attribute__((noinline)) const REAL* widened(
    Rows rows, ptrdiff_t c, ptrdiff_t width, REAL* room) {
    for (ptrdiff_t j = 0; j < rows.n; j++) {
        const char* row = (const char*)rows.first + 2 * (j * rows.stride + c);
        REAL* to = room + j * width;
        ptrdiff_t i = 0;
        for (; i + LANES <= width; i += LANES) store(to + i, get_short(row + 2 * i, LANES));
        if (i < width) store_part(to + i, get_short(row + 2 * i, width - i), width - i);
    }
    return room;
}

// scores[j, i] = scale * rows_i · others_j, over `width` columns. `turned` is what `turn` made of
// the rows; if they are wider than DEPTH it is made anew, part by part.
static void scores_of(ptrdiff_t count, const REAL* rows, ptrdiff_t row, Rows others,
    ptrdiff_t width, REAL scale, REAL* turned, int is_turned, REAL* scores) {
    REAL room[KEYS * DEPTH];
    ptrdiff_t c = 0;
    do {
        ptrdiff_t part = least(width - c, DEPTH);
        if (!is_turned || width > DEPTH) turn(count, part, rows + c, row, scale, turned);
        const REAL* x = others.is_short ? widened(others, c, part, room) : from_column(others, c);
        product(others.n, (count + LANES - 1) & -LANES, part, x,
            others.is_short ? part : others.stride, 1, turned, SIDE, scores, SIDE, c > 0);
        c += part;
    } while (c < width);
}

// out_i (+)= Σ_j weights[j, i] others_j, of `width` columns.
static void weigh_rows(ptrdiff_t count, const REAL* weights, Rows others, ptrdiff_t width,
    REAL* out, ptrdiff_t out_row, int adds) {
    REAL room[KEYS * DEPTH];
    if (!others.is_short || count == 1) {
        (others.is_short ? product_of_short : product)(count, width, others.n, weights, 1, SIDE,
            others.first, others.stride, out, out_row, adds);
        return;
    }
    for (ptrdiff_t c = 0; c < width; c += DEPTH) {
        ptrdiff_t part = least(width - c, DEPTH);
        product(count, part, others.n, weights, 1, SIDE, widened(others, c, part, room), part,
            out + c, out_row, adds);
    }
}

// The scores of one query: keys are turned rather than queries, so that a vector has those of many
// keys. The sums are the same.
static void scores_of_one(
    const REAL* query, Rows others, ptrdiff_t width, REAL scale, REAL* turned, REAL* scores) {
    REAL scaled[DEPTH], row[KEYS];
    ptrdiff_t c = 0;
    do {
        ptrdiff_t part = least(width - c, DEPTH);
        EACH_VECTOR(i, n, part) put(scaled + i, get(query + c + i, n) * scale, n);
        for (ptrdiff_t j = 0; j < others.n; j += SIDE) {
            ptrdiff_t count = least(others.n - j, SIDE);
            const void* x = from_column(others, j * others.stride + c);
            if (others.is_short) turn_short(count, part, x, others.stride, turned);
            else turn(count, part, x, others.stride, 1, turned);
            product(1, count, part, scaled, 0, 1, turned, SIDE, row + j, 0, c > 0);
        }
        c += part;
    } while (c < width);
    for (ptrdiff_t j = 0; j < others.n; j++) scores[j * SIDE] = row[j];
}

// Bound scores by c tanh(score / c), and leave the slope of that, 1 - tanh², unless that is NULL.
static __attribute__((noinline)) void cap(
    ptrdiff_t count, ptrdiff_t keys, REAL softcap, REAL* scores, REAL* slopes) {
    for (ptrdiff_t j = 0; j < keys; j++)
        for (ptrdiff_t i = 0; i < count; i += LANES) {
            vector u = tanh_of(load(scores + j * SIDE + i) / softcap);
            store(scores + j * SIDE + i, u * softcap);
            if (slopes) store(slopes + j * SIDE + i, 1 - u * u);
        }
}

#define LOOK_UP(type)                                                                      \
    for (ptrdiff_t i = 0; i < count; i++) {                                                \
        const type* features = (const type*)of->pairs + (query + i) * of->keys + low;      \
        for (ptrdiff_t j = 0; j < keys; j++) rows[i * KEYS + j] = head->bias[features[j]]; \
    }

// Add to the scores of some queries and up to KEYS keys the numbers of these pairs.
static __attribute__((noinline)) void add_pairs(const Head* head, ptrdiff_t query, ptrdiff_t count,
    ptrdiff_t low, ptrdiff_t keys, REAL* scores) {
    const Sentence* of = &head->of;
    REAL rows[SIDE * KEYS], columns[KEYS * SIDE];
    const REAL* numbers = rows;
    ptrdiff_t stride = KEYS;
    switch (head->call->feature_bytes) {
        case 1: LOOK_UP(uint8_t) break;
        case 2: LOOK_UP(uint16_t) break;
        case 4: LOOK_UP(uint32_t) break;
        default:
            numbers = (const REAL*)of->pairs + head->head * of->step + query * of->keys + low;
            stride = of->keys;
    }
    turn(count, keys, numbers, stride, 1, columns);
    for (ptrdiff_t j = 0; j < keys; j++) EACH_VECTOR(i, n, count) {
            REAL* at = scores + j * SIDE + i;
            store(at, load(at) + load(columns + j * SIDE + i));
        }
}

// Add the bias to scores of keys from `low` on, and put -infinity where a query does not see a key.
static __attribute__((noinline)) void extend(
    const Head* head, Span span, ptrdiff_t low, ptrdiff_t keys, REAL* scores) {
    const Sentence* of = &head->of;
    const uint8_t* visible = (const uint8_t*)of->visible;
    const REAL* bias = of->pairs ? NULL : head->bias;
    for (ptrdiff_t j = 0; of->pairs && j < keys; j += KEYS)
        add_pairs(head, span.first, span.count, low + j, least(keys - j, KEYS), scores + j * SIDE);
    for (ptrdiff_t j = 0; j < keys; j++) {
        ptrdiff_t key = low + j, from = key - of->right, to = key + of->left;
        int is_partial = from > span.first || to < span.first + span.count - 1;
        if (!bias && !is_partial) continue;
        EACH_VECTOR(i, n, span.count) {
            vector x = load(scores + j * SIDE + i);
            if (bias) x += get(bias + span.first + i - key, n);
            if (is_partial) {
                mask seen = first_lanes(to - span.first - i + 1);
                seen &= ~first_lanes(from - span.first - i);
                x = choose(seen, x, splat(-INFINITY));
            }
            store(scores + j * SIDE + i, x);
        }
    }
    for (ptrdiff_t i = 0; visible && i < span.count; i++) {
        const uint8_t* flags = visible + (span.first + i) * of->across + low;
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
    return head->bias || of->pairs || of->visible ||
           span.low + of->left < span.first + span.count - 1 ||
           span.high - 1 - of->right > span.first;
}

// Keys and values from row `key` on, in a run or in their page: those of the rows up to `end` that lie
// side by side.
static void find(const Head* head, ptrdiff_t key, ptrdiff_t end, Rows* k, Rows* v) {
    const Call* call = head->call;
    *k = (Rows){head->k + key * call->key_row, end - key, call->key_row, 0};
    *v = (Rows){head->v + key * call->value_row, end - key, call->value_row, 0};
    if (!call->pages) return;
    const Sentence* of = &head->of;
    ptrdiff_t place = key + (key < of->split ? 0 : of->gap), row = place % call->page_rows;
    const int64_t* page = call->pages + 2 * (of->page + place / call->page_rows);
    ptrdiff_t group = head->head / call->shared;
    if (key < of->split) end = least(end, of->split);
    k->n = v->n = least(end - key, call->page_rows - row);
    k->is_short = v->is_short = (int)call->is_short;
    k->first = (const void*)page[0], v->first = (const void*)page[1];
    k->first = from_column(*k, row * call->key_row + group * call->key_width);
    v->first = from_column(*v, row * call->value_row + group * call->value_width);
}
