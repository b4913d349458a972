// Gradients of the weights and biases of linear maps: sums over all rows.
#include "product.h"

// Panels of inputs that lie packed in the second-level cache, half a megabyte.
#define PACKED (2 * GROUP / PANEL)

// Columns of an input, from `left` on, over some of the terms at hand: those behind `skip`.
typedef struct {
    ptrdiff_t input, left, columns, skip;
    int adds;
} packed_columns;

// Pack columns of inputs, from those that *input and *left name, which move on; returns how many
// panels these are.
static ptrdiff_t pack_inputs(ptrdiff_t k, ptrdiff_t terms, int adds, ptrdiff_t inputs,
    const int64_t* xs, ptrdiff_t* input, ptrdiff_t* left, packed_columns* packed, REAL* room) {
    ptrdiff_t count = 0;
    while (*input < inputs && count < PACKED) {
        const int64_t* x = xs + 4 * *input;
        ptrdiff_t zeros = x[3], skip = most(zeros - k, 0), columns = least(x[2] - *left, PANEL);
        if (skip < terms) {
            const REAL* from = (const REAL*)(intptr_t)x[0] + (k + skip - zeros) * x[1] + *left;
            pack_panel(terms - skip, columns, from, x[1], 1, room + count * PART * PANEL);
            int more = adds || k > zeros / PART * PART;
            packed[count++] = (packed_columns){*input, *left, columns, skip, more};
        }
        *left += columns;
        if (*left == x[2]) ++*input, *left = 0;
    }
    return count;
}

// Add up columns of dy over some rows, which lie in `block`, `columns` apart.
static void add_up(ptrdiff_t rows, ptrdiff_t columns, const REAL* block, int adds, REAL* sums) {
    for (ptrdiff_t first = 0; first < rows; first += TOGETHER, adds = 1)
        EACH_VECTOR(j, n, columns) {
            vector sum = {0};
            for (ptrdiff_t i = first; i < least(first + TOGETHER, rows); i++)
                sum += get(block + i * columns + j, n);
            put(sums + j, adds ? sum + get(sums + j, n) : sum, n);
        }
}

// For each of `maps` gradients dy (rows, O): out (O, I) = dyᵀ x of `inputs` inputs x, and sums (O,) =
// its columns'; with `adds`, in addition to what is there.
//
// A row of `xs` holds where x is, the elements from one of its rows to the next, I > 0, and how many
// of the `rows`, not all of them, are zeros that come before it. A row of `dys` holds where dy is,
// its stride, O, where `sums` is, and for each input where `out` is, and its stride; 0 for what
// nobody asks for.
//
// The O of all maps are numbered through: this call makes those from `first` to `last` - 1. A sum
// goes through parts of PART rows in order, so it does not depend on how threads share them.
EXPORT void weight_gradients(ptrdiff_t first, ptrdiff_t last, ptrdiff_t rows, ptrdiff_t inputs,
    const int64_t* xs, ptrdiff_t maps, const int64_t* dys, int adds) {
    static _Thread_local REAL room[PART * PANEL * PACKED] __attribute__((aligned(64)));
    static _Thread_local REAL block[PART * ROW_BLOCK] __attribute__((aligned(64)));
    packed_columns packed[PACKED];
    for (ptrdiff_t k = 0; k < rows; k += PART) {
        ptrdiff_t terms = least(rows - k, PART), input = 0, left = 0;
        int makes_sums = 1;
        do {
            ptrdiff_t count = pack_inputs(k, terms, adds, inputs, xs, &input, &left, packed, room);
            ptrdiff_t start = 0;
            for (ptrdiff_t m = 0; m < maps; m++) {
                const int64_t* map = dys + m * (4 + 2 * inputs);
                const REAL* dy = (const REAL*)(intptr_t)map[0] + k * map[1];
                REAL* sums = (REAL*)(intptr_t)map[3];
                ptrdiff_t low = most(first - start, 0), high = least(last - start, map[2]);
                start += map[2];
                for (ptrdiff_t o = low; o < high; o += ROW_BLOCK) {
                    ptrdiff_t width = least(high - o, ROW_BLOCK);
                    for (ptrdiff_t i = 0; i < terms; i++)
                        memcpy(
                            block + i * width, dy + i * map[1] + o, (size_t)width * sizeof(REAL));
                    if (makes_sums && sums) add_up(terms, width, block, adds || k, sums + o);
                    for (ptrdiff_t n = 0; n < count; n++) {
                        packed_columns x = packed[n];
                        REAL* out = (REAL*)(intptr_t)map[4 + 2 * x.input];
                        ptrdiff_t stride = map[5 + 2 * x.input];
                        if (!out) continue;
                        out += o * stride + x.left;
                        rows_by_panel(width, x.columns, terms - x.skip, block + x.skip * width, 1,
                            width, room + n * PART * PANEL, (x.columns + LANES - 1) & -LANES,
                            x.adds ? out : NULL, stride, out, stride);
                    }
                }
            }
            makes_sums = 0;
        } while (input < inputs);
    }
}

// Rows whose sums lie in the cache while the planes of a product are added up.
#define SUMMED (2 * ROW_BLOCK)

// Rows first, …, last - 1 of a product: out[index[n]] = Σ a_p[n] b_p over P planes, for a_p (N, K) and
// b_p (K, I), whose planes and rows lie the given numbers of elements apart; with `adds`, in addition
// to what is there. Without an index n itself is meant.
EXPORT void scatter_products(ptrdiff_t first, ptrdiff_t last, ptrdiff_t P, ptrdiff_t K, ptrdiff_t I,
    const REAL* a, ptrdiff_t a_plane, ptrdiff_t a_row, const REAL* b, ptrdiff_t b_plane,
    ptrdiff_t b_row, const int64_t* index, REAL* out, ptrdiff_t out_row, int adds) {
    static _Thread_local REAL sums[SUMMED * GROUP] __attribute__((aligned(64)));
    for (ptrdiff_t n = first; n < last; n += SUMMED) {
        ptrdiff_t rows = least(last - n, SUMMED);
        for (ptrdiff_t left = 0; left < I; left += GROUP) {
            ptrdiff_t columns = least(I - left, GROUP);
            for (ptrdiff_t p = 0; p < P; p++)
                unpacked_product(rows, K, columns, a + p * a_plane + n * a_row, a_row, 1,
                    b + p * b_plane + left, b_row, 1, p ? sums : NULL, columns, sums, columns);
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
