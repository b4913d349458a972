// Products of rows where they lie, and rows turned into columns.
#include "functions.h"
#include "shuffles.h"

enum { SIDE = 32, DEPTH = 128 };  // columns of a turned block, and terms of a sum at a time

#if VECTOR_BYTES == 64 || defined(__aarch64__)
#define HEIGHT 8  // 16 of 32 registers are sums
#else
#define HEIGHT 6  // 12 of 16
#endif

#if defined(__AVX512F__)
#define GET load_part  // no slower, and no branch
#define PUT store_part
#else
#define GET get
#define PUT put
#endif

#define PRODUCT                                                                         \
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t terms, const REAL *a, ptrdiff_t a_row, \
        ptrdiff_t a_step, const REAL *b, ptrdiff_t b_row, REAL *c, ptrdiff_t c_row, int adds

// `product` of up to `vectors` vectors of columns, `height` rows at a time.
INLINE void narrow_product(const int height, const int vectors, PRODUCT) {
    ptrdiff_t part = columns - (vectors - 1) * LANES;
    for (ptrdiff_t done = 0; done < rows; done += height, c += height * c_row) {
        ptrdiff_t left = rows - done;
        vector sum[HEIGHT][2];
        const REAL* row[HEIGHT];
#pragma GCC unroll 8
        for (int r = 0; r < height; r++) {
            row[r] = a + (done + least(r, left - 1)) * a_row;
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[r][v] = (vector){0};
        }
        if (adds) {
#pragma GCC unroll 8
            for (int r = 0; r < height; r++)
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++)
                    if (r < left)
                        sum[r][v] = GET(c + r * c_row + v * LANES, v + 1 < vectors ? LANES : part);
        }
        const REAL* from = b;
        if (a_step == 1)  // rows that lie apart are not fetched ahead by themselves
            for (int r = 0; r < height; r++)
                for (ptrdiff_t n = 0; n < terms; n += LANES)
                    __builtin_prefetch(row[r] + height * a_row + n);
        for (ptrdiff_t n = 0; n < terms; n++, from += b_row) {
            vector x[2];
            if (height == 1)
                for (int v = 0; v < vectors; v++) __builtin_prefetch(from + 8 * b_row + v * LANES);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                x[v] = v + 1 < vectors ? load(from) : GET(from + v * LANES, part);
#pragma GCC unroll 8
            for (int r = 0; r < height; r++) {
                vector factor = splat(row[r][n * a_step]);
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++) sum[r][v] = multiply_add(factor, x[v], sum[r][v]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < height; r++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                if (r < left)
                    PUT(c + r * c_row + v * LANES, sum[r][v], v + 1 < vectors ? LANES : part);
    }
}
#define EACH_PRODUCT(name, height, vectors)                                                     \
    static __attribute__((noinline)) void name(PRODUCT) {                                       \
        narrow_product(                                                                         \
            height, vectors, rows, columns, terms, a, a_row, a_step, b, b_row, c, c_row, adds); \
    }
EACH_PRODUCT(two_vectors, HEIGHT, 2)
EACH_PRODUCT(one_vector, HEIGHT, 1)
EACH_PRODUCT(row_of_two, 1, 2)
EACH_PRODUCT(row_of_one, 1, 1)

// c[r, i] = Σ_n a[r, n] b[n, i], added to c if `adds`.
//
//     a[r, n] lies at a + r * a_row + n * a_step;  rows of b and c are b_row and c_row apart
//
// An element's sum goes through the terms in their order, whatever rows and columns are computed
// with it, and however many terms at a time.
static void product(PRODUCT) {
    ptrdiff_t done = 0;
    do {  // once for no terms too, which are zeros
        ptrdiff_t now = least(terms - done, DEPTH);
        for (ptrdiff_t i = 0; i < columns; i += 2 * LANES) {
            ptrdiff_t across = least(columns - i, 2 * LANES);
            void (*part)(PRODUCT) = rows == 1        ? across > LANES ? row_of_two : row_of_one
                                    : across > LANES ? two_vectors
                                                     : one_vector;
            part(rows, across, now, a + done * a_step, a_row, a_step, b + done * b_row + i, b_row,
                c + i, c_row, adds);
        }
        done += now, adds = 1;
    } while (done < terms);
}

// to[c * SIDE + i] = scale * rows[i * stride + c] for i < count and c < width, up to a whole number
// of vectors of some row's. Each round swaps one bit of an element's row with one of its column.
static __attribute__((noinline)) void turn(
    ptrdiff_t count, ptrdiff_t width, const REAL* rows, ptrdiff_t stride, REAL scale, REAL* to) {
    enum { N = VECTOR_BYTES / sizeof(REAL) };
    for (ptrdiff_t i = 0; i < count; i += LANES) EACH_VECTOR(c, n, width) {
            vector x[N], y[N];
            const REAL* row = rows + i * stride + c;
#pragma GCC unroll 16
            for (int r = 0; r < N; r++) {
                x[r] = GET(row, n) * scale;
                __builtin_prefetch(row + width);  // of the next head, as likely as not
                row += i + r + 1 < count ? stride : 0;
            }
#pragma GCC unroll 4
            for (int round = N; round > 1; round /= 2) {
#pragma GCC unroll 8
                for (int r = 0; r < N / 2; r++) {
                    y[2 * r] = first_halves(x[r], x[r + N / 2]);
                    y[2 * r + 1] = second_halves(x[r], x[r + N / 2]);
                }
#pragma GCC unroll 16
                for (int r = 0; r < N; r++) x[r] = y[r];
            }
            REAL* at = to + c * SIDE + i;
#pragma GCC unroll 16
            for (int r = 0; r < N; r++)
                if (r < n) store(at + r * SIDE, x[r]);
        }
}
