// Convolutions: patches are unfolded a block at a time, into the cache, as a product reads them.
//
// A patch has `positions` times `width` terms: the columns of its first position, then of the next.
#include "patches.h"
#include "sparse.h"

// Terms k, …, k + terms - 1 of patches first, …, first + rows - 1; zeros where there is no pixel.
static void unfold_terms(ptrdiff_t first, ptrdiff_t rows, ptrdiff_t k, ptrdiff_t terms,
    ptrdiff_t width, const int64_t* images, const int64_t* how, const REAL* x, ptrdiff_t x_row,
    REAL* out) {
    spot at = {images, 0, 0};
    const ptrdiff_t across = how[KERNEL + 1], position = width ? k / width : 0;
    for (ptrdiff_t m = first; m < first + rows; m++, out += terms) {
        at = spot_of(at.image, m);
        ptrdiff_t i = position / across, j = position % across, column = k - position * width;
        ptrdiff_t line = line_of(at, how, i);
        for (ptrdiff_t done = 0, count; done < terms; done += count) {
            count = least(width - column, terms - done);
            ptrdiff_t pixel = line < 0 ? -1 : column_of(at, how, j);
            size_t bytes = (size_t)count * sizeof(REAL);
            if (pixel < 0) memset(out + done, 0, bytes);
            else memcpy(out + done, x + row_of(at, line, pixel) * x_row + column, bytes);
            column = 0;
            if (++j == across) j = 0, line = line_of(at, how, ++i);
        }
    }
}

// Write the columns of b (K, columns) as terms `first` to `first` + K - 1 of a panel of `terms` terms.
// They may begin or end in the middle of a word.
static void pack_part(ptrdiff_t terms, ptrdiff_t first, ptrdiff_t K, ptrdiff_t columns,
    const REAL* b, ptrdiff_t row, ptrdiff_t column, REAL* panel) {
    static _Thread_local REAL lines[PART * PANEL];
    const ptrdiff_t width = (columns + LANES - 1) & -LANES;
    const int has_whole_words = first % TERMS == 0 && (K % TERMS == 0 || first + K == terms);
    if (column == 1) {
        pack_rows(terms, first, K, columns, b, 0, row, panel);
    } else if (has_whole_words) {
        pack_panel(K, columns, b, 0, row, column, panel + first / TERMS * width);
    } else {
        for (ptrdiff_t k = 0; k < K; k++)
            for (ptrdiff_t j = 0; j < columns; j++)
                lines[k * columns + j] = b[k * row + j * column];
        pack_rows(terms, first, K, columns, lines, 0, columns, panel);
    }
}

// Pack columns left, …, right - 1 of a weight of N columns, part by part of its terms, for `convolve`.
// Its positions, the terms of a position, and its columns lie the given numbers of elements apart.
EXPORT void pack_positions(ptrdiff_t left, ptrdiff_t right, ptrdiff_t positions, ptrdiff_t width,
    ptrdiff_t N, const REAL* weight, ptrdiff_t position, ptrdiff_t term, ptrdiff_t column,
    REAL* panels) {
    const ptrdiff_t K = positions * width, padded = (N + LANES - 1) & -LANES;
    for (ptrdiff_t k = 0, terms; k < K; k += terms, panels += WORDS(terms) * padded) {
        terms = least(K - k, PART);
        for (ptrdiff_t j = left; j < right; j += PANEL) {
            const ptrdiff_t columns = least(right - j, PANEL);
            for (ptrdiff_t t = k, count; t < k + terms; t += count) {
                const ptrdiff_t within = t % width;
                const REAL* from = weight + t / width * position + within * term + j * column;
                count = least(width - within, k + terms - t);
                pack_part(
                    terms, t - k, count, columns, from, term, column, panels + WORDS(terms) * j);
            }
        }
    }
}

// Rows first, …, last - 1 of `out` (M, N): out[m] = patch m by a weight that is packed, plus a bias
// or NULL.
EXPORT void convolve(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const int64_t* images,
    const int64_t* how, const REAL* x, ptrdiff_t x_row, ptrdiff_t N, const REAL* panels,
    const REAL* bias, REAL* out, ptrdiff_t out_row) {
    static _Thread_local REAL block[PART * ROW_BLOCK] __attribute__((aligned(64)));
    const ptrdiff_t K = how[KERNEL] * how[KERNEL + 1] * width, padded = (N + LANES - 1) & -LANES;
    ptrdiff_t k = 0;
    do {  // once for K = 0 too, which is the bias
        const ptrdiff_t terms = least(K - k, PART);
        int finite = -1;  // not known yet
        for (ptrdiff_t i = first; i < last; i += ROW_BLOCK) {
            const ptrdiff_t rows = least(last - i, ROW_BLOCK);
            REAL* to = out + i * out_row;
            unfold_terms(i, rows, k, terms, width, images, how, x, x_row, block);
            const REAL* base = k ? to : bias;
            const ptrdiff_t base_row = k ? out_row : 0;
            const int sparse = is_sparse(rows, terms, block, terms);
            if (sparse && finite < 0) finite = are_finite(1, terms * padded, panels, 0);
            if (sparse && finite)
                sparse_product(
                    rows, terms, N, block, terms, 1, panels, 0, base, base_row, to, out_row);
            else product(rows, terms, N, block, terms, panels, base, base_row, to, out_row);
        }
        k += terms, panels += WORDS(terms) * padded;
    } while (k < K);
}

// Columns first, …, last - 1 of `out` (O, K) = Σ_m dy[m] patch mᵀ, over M patches: in parts of PART
// rows, in order.
EXPORT void sum_outer(ptrdiff_t first, ptrdiff_t last, ptrdiff_t M, ptrdiff_t width,
    const int64_t* images, const int64_t* how, const REAL* x, ptrdiff_t x_row, ptrdiff_t O,
    const REAL* dy, ptrdiff_t dy_row, REAL* out, ptrdiff_t out_row) {
    static _Thread_local REAL room[PART * GROUP] __attribute__((aligned(64)));
    for (ptrdiff_t c = first; c < last; c += GROUP) {
        const ptrdiff_t columns = least(last - c, GROUP);
        ptrdiff_t m = 0;
        do {  // once without patches too, which is 0
            const ptrdiff_t rows = least(M - m, PART);
            unfold_terms(m, rows, c, columns, width, images, how, x, x_row, room);
            const REAL *from = dy + m * dy_row, *base = m ? out + c : NULL;
            if (is_sparse(rows, O, from, dy_row) && are_finite(rows, columns, room, columns))
                sparse_product(O, rows, columns, from, 1, dy_row, room, columns, base, out_row,
                    out + c, out_row);
            else
                unpacked_product(O, rows, columns, from, 0, 1, dy_row, room, 0, columns, 1, base,
                    out_row, out + c, out_row);
            m += rows;
        } while (m < M);
    }
}
