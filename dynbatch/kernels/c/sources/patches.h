// Where the positions of patches are: see `Patches` of kernels/images.py.
#include "common.h"

// What a table has for each image: its first row, height and width, then its first patch and how
// many are side by side. It has one image more, whose first patch is the number of all.
enum { START, HEIGHT, WIDTH, PATCH, ACROSS, ENTRIES };
// Where `how` has the pairs of the formula, each of the height and of the width.
enum { KERNEL = 0, STEP = 2, OFFSET = 4, DILATION = 6, DIVISOR = 8 };

// A patch: its image, and where it is among those of the image.
typedef struct {
    const int64_t* image;
    ptrdiff_t y, x;
} spot;

// Patch m; `image` is one at or before its own.
INLINE spot spot_of(const int64_t* image, ptrdiff_t m) {
    while (image[ENTRIES + PATCH] <= m) image += ENTRIES;
    ptrdiff_t within = m - image[PATCH];
    return (spot){image, within / image[ACROSS], within % image[ACROSS]};
}

// A line (axis 0) or a column (axis 1) of an image, position i of a patch at `at`; -1 outside.
INLINE ptrdiff_t placed(const int64_t* how, int axis, ptrdiff_t at, ptrdiff_t i, ptrdiff_t size) {
    ptrdiff_t number = at * how[STEP + axis] + how[OFFSET + axis] + i * how[DILATION + axis];
    ptrdiff_t divisor = how[DIVISOR + axis];
    if (number < 0 || (divisor > 1 && number % divisor)) return -1;
    if (divisor > 1) number /= divisor;
    return number < size ? number : -1;
}
INLINE ptrdiff_t line_of(spot at, const int64_t* how, ptrdiff_t i) {
    return placed(how, 0, at.y, i, at.image[HEIGHT]);
}
INLINE ptrdiff_t column_of(spot at, const int64_t* how, ptrdiff_t j) {
    return placed(how, 1, at.x, j, at.image[WIDTH]);
}
INLINE ptrdiff_t row_of(spot at, ptrdiff_t line, ptrdiff_t column) {
    return at.image[START] + line * at.image[WIDTH] + column;
}
