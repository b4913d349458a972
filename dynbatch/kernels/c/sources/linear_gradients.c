// Gradients of the weights and biases of linear maps: sums over all rows.
#include "product.h"

// Panels of inputs that lie packed in the second-level cache, half a megabyte.
#define PACKED (2 * GROUP / PANEL)

#define OF_INPUT 5  // numbers of each, as `weight_gradients` reads them

// Columns of an input, from `left` on, over some of the terms at hand: those behind `skip`.
typedef struct {
    ptrdiff_t input, left, columns, skip;
    int adds;
} packed_columns;

// Pack the rows of a panel of `terms` terms that are behind `skip`, which are zeros. Whole words of
// them are left out: a word holds the same rows however many are zeros.
static void pack_last_rows(ptrdiff_t terms, ptrdiff_t skip, ptrdiff_t columns, const void* x,
    int is_short, ptrdiff_t row, REAL* panel) {
    ptrdiff_t first = skip % TERMS;
    if (first) memset(panel, 0, PANEL * sizeof(REAL));
    pack_rows(terms - skip + first, first, terms - skip, columns, x, is_short, row, panel);
}

// Pack columns of inputs, from those that *input and *left name, which move on; returns how many
// panels these are.
static ptrdiff_t pack_inputs(ptrdiff_t k, ptrdiff_t terms, int adds, ptrdiff_t inputs,
    const int64_t* xs, ptrdiff_t* input, ptrdiff_t* left, packed_columns* packed, REAL* room) {
    ptrdiff_t count = 0;
    while (*input < inputs && count < PACKED) {
        const int64_t* x = xs + OF_INPUT * *input;
        ptrdiff_t zeros = x[3], skip = most(zeros - k, 0), columns = least(x[2] - *left, PANEL);
        if (skip < terms) {
            int is_short = (int)x[4];
            ptrdiff_t start = (k + skip - zeros) * x[1] + *left;
            const void* from = element((const void*)(intptr_t)x[0], start, is_short);
            REAL* panel = room + count * PART_WORDS * PANEL;
            pack_last_rows(terms, skip, columns, from, is_short, x[1], panel);
            int more = adds || k > zeros / PART * PART;
            packed[count++] = (packed_columns){*input, *left, columns, skip, more};
        }
        *left += columns;
        if (*left == x[2]) ++*input, *left = 0;
    }
    return count;
}

// Add up columns of dy over some rows, which lie `stride` apart.
static void add_up(
    ptrdiff_t rows, ptrdiff_t columns, const REAL* dy, ptrdiff_t stride, int adds, REAL* sums) {
    for (ptrdiff_t first = 0; first < rows; first += TOGETHER, adds = 1)
        EACH_VECTOR(j, n, columns) {
            vector sum = {0};
            for (ptrdiff_t i = first; i < least(first + TOGETHER, rows); i++)
                sum += get(dy + i * stride + j, n);
            put(sums + j, adds ? sum + get(sums + j, n) : sum, n);
        }
}

// Zeros in rows `low` to `high` - 1 of what nothing is summed for.
static void clear(const int64_t* map, ptrdiff_t low, ptrdiff_t high, ptrdiff_t rows,
    ptrdiff_t inputs, const int64_t* xs) {
    REAL* sums = (REAL*)(intptr_t)map[3];
    if (!rows && sums && low < high) memset(sums + low, 0, (size_t)(high - low) * sizeof(REAL));
    for (ptrdiff_t n = 0; n < inputs; n++) {
        REAL* out = (REAL*)(intptr_t)map[4 + 2 * n];
        for (ptrdiff_t o = low; out && xs[OF_INPUT * n + 3] >= rows && o < high; o++)
            memset(out + o * map[5 + 2 * n], 0, (size_t)xs[OF_INPUT * n + 2] * sizeof(REAL));
    }
}

// For each of `maps` gradients dy (rows, O): out (O, I) = dyᵀ x of `inputs` inputs x, and sums (O,) =
// its columns'; with `adds`, in addition to what is there.
//
// A row of `xs` holds where x is, the elements from one of its rows to the next, I > 0, how many of
// the `rows` are zeros that come before it, and whether it has upper halves in place of numbers. A row of `dys` holds where dy is, its stride, O, where
// `sums` is, and for each input where `out` is, and its stride; 0 for what nobody asks for.
//
// The O of all maps are numbered through: this call makes those from `first` to `last` - 1. A sum
// goes through parts of PART rows in order, so it does not depend on how threads share them.
EXPORT void weight_gradients(ptrdiff_t first, ptrdiff_t last, ptrdiff_t rows, ptrdiff_t inputs,
    const int64_t* xs, ptrdiff_t maps, const int64_t* dys, int adds) {
    static _Thread_local REAL room[PART_WORDS * PANEL * PACKED] __attribute__((aligned(64)));
    static _Thread_local REAL block[PART_WORDS * ROW_BLOCK] __attribute__((aligned(64)));
    packed_columns packed[PACKED];
    ptrdiff_t size = 4 + 2 * inputs, start = 0;
    const int64_t* end = dys + maps * size;
    for (const int64_t* map = dys; map < end && !adds; start += map[2], map += size)
        clear(map, most(first - start, 0), least(last - start, map[2]), rows, inputs, xs);
    for (ptrdiff_t k = 0; k < rows; k += PART) {
        ptrdiff_t terms = least(rows - k, PART), input = 0, left = 0;
        int makes_sums = 1;
        do {
            ptrdiff_t count = pack_inputs(k, terms, adds, inputs, xs, &input, &left, packed, room);
            start = 0;
            for (const int64_t* map = dys; map < end; start += map[2], map += size) {
                const REAL* dy = (const REAL*)(intptr_t)map[0] + k * map[1];
                REAL* sums = (REAL*)(intptr_t)map[3];
                ptrdiff_t low = most(first - start, 0), high = least(last - start, map[2]);
                for (ptrdiff_t o = low; o < high; o += ROW_BLOCK) {
                    ptrdiff_t width = least(high - o, ROW_BLOCK), row = 1, word = map[1];
                    const REAL* turned =
                        rows_of_words(0, width, terms, dy + o, 0, &row, &word, block);
                    if (makes_sums && sums)
                        add_up(terms, width, dy + o, map[1], adds || k, sums + o);
                    unsigned long mode = begin_product();
                    for (ptrdiff_t n = 0; n < count; n++) {
                        packed_columns x = packed[n];
                        REAL* out = (REAL*)(intptr_t)map[4 + 2 * x.input];
                        ptrdiff_t stride = map[5 + 2 * x.input];
                        if (!out) continue;
                        out += o * stride + x.left;
                        ptrdiff_t skipped = x.skip / TERMS;
                        rows_by_panel(AS_WORDS, width, x.columns, WORDS(terms) - skipped,
                            turned + skipped * word, row, word, room + n * PART_WORDS * PANEL,
                            (x.columns + LANES - 1) & -LANES, x.adds ? out : NULL, stride, out,
                            stride);
                    }
                    end_product(mode);
                }
            }
            makes_sums = 0;
        } while (input < inputs);
    }
}

// Rows whose sums lie in the cache while products are added to them.
#define SUMMED (2 * TERMS * ROW_BLOCK)

// Rows first, …, last - 1 of a sum of products, I columns wide: out[index[n]] = base[n] + Σ x[n] w;
// with `adds`, in addition to what is there. Without an index n itself is meant, without a base 0.
//
// A row of `products` holds the first column of `out` that one is added to, its terms and columns,
// and where x and w are, each with the elements from one of its rows to the next.
EXPORT void scatter_products(ptrdiff_t first, ptrdiff_t last, ptrdiff_t I, const int64_t* index,
    const REAL* base, ptrdiff_t base_row, REAL* out, ptrdiff_t out_row, ptrdiff_t count,
    const int64_t* products, int adds) {
    static _Thread_local REAL sums[SUMMED * GROUP] __attribute__((aligned(64)));
    for (ptrdiff_t n = first; n < last; n += SUMMED) {
        ptrdiff_t rows = least(last - n, SUMMED);
        for (ptrdiff_t left = 0; left < I; left += GROUP) {
            ptrdiff_t columns = least(I - left, GROUP);
            for (ptrdiff_t i = 0; i < rows; i++) {
                size_t bytes = (size_t)columns * sizeof(REAL);
                if (base) memcpy(sums + i * columns, base + (n + i) * base_row + left, bytes);
                else memset(sums + i * columns, 0, bytes);
            }
            for (const int64_t *p = products, *end = p + 7 * count; p < end; p += 7) {
                ptrdiff_t low = most(p[0], left), high = least(p[0] + p[2], left + columns);
                const REAL* x = (const REAL*)(intptr_t)p[3] + n * p[4];
                const REAL* w = (const REAL*)(intptr_t)p[5] + low - p[0];
                REAL* sum = sums + low - left;
                if (low < high)
                    unpacked_product(rows, p[1], high - low, x, 0, p[4], 1, w, 0, p[6], 1, sum,
                        columns, sum, columns);
            }
            for (ptrdiff_t i = 0; i < rows; i++) {
                REAL* row = out + (index ? index[n + i] : n + i) * out_row + left;
                EACH_VECTOR(j, m, columns) {
                    vector sum = get(sums + i * columns + j, m);
                    put(row + j, adds ? get(row + j, m) + sum : sum, m);
                }
            }
        }
    }
}
