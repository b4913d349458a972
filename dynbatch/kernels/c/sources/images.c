// Patches of images of different sizes: kernels/images.py.
#include "patches.h"

// For the positions (i, j) of a patch that have a row, which is `line` and `column` of the image.
#define EACH_PIXEL(at, how)                                         \
    for (ptrdiff_t i = 0, line; i < how[KERNEL]; i++)               \
        if ((line = line_of(at, how, i)) >= 0)                      \
            for (ptrdiff_t j = 0, column; j < how[KERNEL + 1]; j++) \
                if ((column = column_of(at, how, j)) >= 0)

// Rows first, …, last - 1 of `out`: the rows of patch begin + m side by side, zeros for none; of
// each group of columns those of all positions.
EXPORT void unfold(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const int64_t* images,
    const int64_t* how, const REAL* x, ptrdiff_t x_stride, REAL* out, ptrdiff_t out_stride,
    ptrdiff_t begin, ptrdiff_t groups) {
    spot at = {images, 0, 0};
    const ptrdiff_t part = width / groups, step = how[KERNEL] * how[KERNEL + 1] * part;
    for (ptrdiff_t m = first; m < last; m++) {
        at = spot_of(at.image, begin + m);
        REAL* to = out + m * out_stride;
        for (ptrdiff_t i = 0; i < how[KERNEL]; i++) {
            ptrdiff_t line = line_of(at, how, i);
            for (ptrdiff_t j = 0; j < how[KERNEL + 1]; j++, to += part) {
                ptrdiff_t column = line < 0 ? -1 : column_of(at, how, j);
                const REAL* from = column < 0 ? NULL : x + row_of(at, line, column) * x_stride;
                for (ptrdiff_t g = 0; g < groups; g++) {
                    REAL* into = to + g * step;
                    if (from) {
                        EACH_VECTOR(c, n, part) put(into + c, get(from + g * part + c, n), n);
                    } else {
                        memset(into, 0, (size_t)part * sizeof(REAL));
                    }
                }
            }
        }
    }
}

// out[m] = factor · the sum of the rows of patch m.
EXPORT void sum_patches(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const int64_t* images,
    const int64_t* how, const REAL* x, ptrdiff_t x_stride, REAL* out, ptrdiff_t out_stride,
    double factor) {
    spot at = {images, 0, 0};
    const vector scale = splat((REAL)factor);
    for (ptrdiff_t m = first; m < last; m++) {
        at = spot_of(at.image, m);
        EACH_VECTOR(c, n, width) {
            vector sum = {0};
            EACH_PIXEL(at, how) sum += get(x + row_of(at, line, column) * x_stride + c, n);
            put(out + m * out_stride + c, sum * scale, n);
        }
    }
}

// out[m] = the maximum of each column of patch m, and argmax[m] its first position, unless NULL.
EXPORT void max_patches(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, const int64_t* images,
    const int64_t* how, const REAL* x, ptrdiff_t x_stride, REAL* out, ptrdiff_t out_stride,
    whole* argmax, ptrdiff_t argmax_stride) {
    spot at = {images, 0, 0};
    for (ptrdiff_t m = first; m < last; m++) {
        at = spot_of(at.image, m);
        EACH_VECTOR(c, n, width) {
            vector largest = {0};
            mask place = {0};
            int is_new = 1;
            EACH_PIXEL(at, how) {
                vector value = get(x + row_of(at, line, column) * x_stride + c, n);
                mask position = (mask){0} + (whole)(i * how[KERNEL + 1] + j);
                mask is_larger = ~(value <= largest) & (largest == largest);  // the first NaN is
                place = is_new ? position : (is_larger & position) | (~is_larger & place);
                largest = is_new ? value : choose(is_larger, value, largest);
                is_new = 0;
            }
            put(out + m * out_stride + c, largest, n);
            if (argmax) put((REAL*)argmax + m * argmax_stride + c, (vector)place, n);
        }
    }
}

// out[n] = Σ of dy over the patches whose maximum is in row n.
EXPORT void max_patches_backward(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width,
    const int64_t* images, const int64_t* how, const REAL* dy, ptrdiff_t dy_stride, REAL* out,
    ptrdiff_t out_stride, const whole* argmax, ptrdiff_t argmax_stride) {
    spot at = {images, 0, 0};
    for (ptrdiff_t m = first; m < last; m++) {
        at = spot_of(at.image, m);
        EACH_VECTOR(c, n, width) {
            vector sum = {0};
            EACH_PIXEL(at, how) {
                ptrdiff_t row = row_of(at, line, column);
                mask place = (mask)get((const REAL*)argmax + row * argmax_stride + c, n);
                mask is_here = place == (whole)(i * how[KERNEL + 1] + j);
                sum += choose(is_here, get(dy + row * dy_stride + c, n), (vector){0});
            }
            put(out + m * out_stride + c, sum, n);
        }
    }
}
