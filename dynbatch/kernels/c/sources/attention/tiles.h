// Products of rows where they lie, and rows turned into columns.
#include "bfloat16.h"
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

// Numbers are kept as REAL or, where `is_short`, as bfloat16, which are widened in registers.
#define BYTES_KEPT(is_short) ((is_short) ? 2 : REAL_BYTES)

// The first n numbers of those that lie at p; zeros in the other lanes.
INLINE vector get_kept(const int is_short, const void* p, ptrdiff_t n) {
    return is_short ? get_short(p, n) : GET(p, n);
}
INLINE vector load_kept(const int is_short, const void* p) {
    return is_short ? get_short(p, LANES) : load(p);
}

#define PRODUCT                                                                         \
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t terms, const REAL *a, ptrdiff_t a_row, \
        ptrdiff_t a_step, const void *b, ptrdiff_t b_row, REAL *c, ptrdiff_t c_row, int adds
#define ITS_PRODUCT rows, columns, terms, a, a_row, a_step, b, b_row, c, c_row, adds

// `product` of up to `vectors` vectors of columns, `height` rows at a time.
INLINE void narrow_product(const int is_short, const int height, const int vectors, PRODUCT) {
    const ptrdiff_t bytes = BYTES_KEPT(is_short);
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
        const char* from = b;
        if (a_step == 1)  // rows that lie apart are not fetched ahead by themselves
            for (int r = 0; r < height; r++)
                for (ptrdiff_t n = 0; n < terms; n += LANES)
                    __builtin_prefetch(row[r] + height * a_row + n);
        for (ptrdiff_t n = 0; n < terms; n++, from += b_row * bytes) {
            vector x[2];
            if (height == 1)
                for (int v = 0; v < vectors; v++)
                    __builtin_prefetch(from + (8 * b_row + v * LANES) * bytes);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                x[v] = v + 1 < vectors ? load_kept(is_short, from)
                                       : get_kept(is_short, from + v * LANES * bytes, part);
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
#define EACH_PRODUCT(name, height, vectors)                       \
    static __attribute__((noinline)) void name(PRODUCT) {         \
        narrow_product(0, height, vectors, ITS_PRODUCT);          \
    }                                                             \
    static __attribute__((noinline)) void name##_short(PRODUCT) { \
        narrow_product(1, height, vectors, ITS_PRODUCT);          \
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
INLINE void product_of(const int is_short, PRODUCT) {
    ptrdiff_t done = 0;
    do {  // once for no terms too, which are zeros
        ptrdiff_t now = least(terms - done, DEPTH);
        for (ptrdiff_t i = 0; i < columns; i += 2 * LANES) {
            ptrdiff_t across = least(columns - i, 2 * LANES);
            void (*part)(PRODUCT) =
                is_short         ? rows == 1        ? across > LANES ? row_of_two_short : row_of_one_short
                                   : across > LANES ? two_vectors_short
                                                    : one_vector_short
                : rows == 1      ? across > LANES ? row_of_two : row_of_one
                : across > LANES ? two_vectors
                                 : one_vector;
            part(rows, across, now, a + done * a_step, a_row, a_step,
                (const char*)b + (done * b_row + i) * BYTES_KEPT(is_short), b_row, c + i, c_row,
                adds);
        }
        done += now, adds = 1;
    } while (done < terms);
}
static void product(PRODUCT) { product_of(0, ITS_PRODUCT); }

// to[c * SIDE + i] = scale * rows[i * stride + c] for i < count and c < width, up to a whole number
// of vectors of some row's. Each round swaps one bit of an element's row with one of its column. Of
// bfloat16 pairs are turned, and then parted; their scale is 1.
INLINE void turn_kept(const int is_short, ptrdiff_t count, ptrdiff_t width, const void* rows,
    ptrdiff_t stride, REAL scale, REAL* to) {
    enum { N = VECTOR_BYTES / sizeof(REAL) };
    const ptrdiff_t bytes = BYTES_KEPT(is_short), each = is_short ? 2 : 1;
    for (ptrdiff_t i = 0; i < count; i += LANES)
        for (ptrdiff_t c = 0; c < width; c += each * N) {
            ptrdiff_t n = least(width - c, each * N);
            vector x[N], y[N];
            const char* row = (const char*)rows + (i * stride + c) * bytes;
#pragma GCC unroll 16
            for (int r = 0; r < N; r++) {
                x[r] = is_short ? get_pairs(row, n) : GET((const void*)row, n) * scale;
                __builtin_prefetch(row + width * bytes);  // of the next head, as likely as not
                row += i + r + 1 < count ? stride * bytes : 0;
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
            for (int r = 0; r < N; r++) {
                if (each * r < n)
                    store(at + each * r * SIDE, is_short ? first_of_pairs(x[r]) : x[r]);
                if (is_short && 2 * r + 1 < n)
                    store(at + (2 * r + 1) * SIDE, second_of_pairs(x[r]));
            }
        }
}
static __attribute__((noinline)) void turn(
    ptrdiff_t count, ptrdiff_t width, const REAL* rows, ptrdiff_t stride, REAL scale, REAL* to) {
    turn_kept(0, count, width, rows, stride, scale, to);
}
