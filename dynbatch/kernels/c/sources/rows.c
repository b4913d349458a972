// Rows summed where their indices repeat, each sum in order of position.
#include "common.h"

// Whether all indices are from 0 to limit - 1.
static int are_below(ptrdiff_t count, const int64_t* index, ptrdiff_t limit) {
    int result = 1;
    for (ptrdiff_t n = 0; n < count; n++) result &= (uint64_t)index[n] < (uint64_t)limit;
    return result;
}

// Threads share columns by lines of the cache, so many floats each.
#define COLUMNS 16

// out[index[n]] += rows[n] in lines first, …, last - 1 of the columns, for n = 0, 1, …; nothing, and
// *taken = 0, if an index is not below `targets`, the rows of `out`.
EXPORT void add_rows(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, ptrdiff_t count,
    const int64_t* index, const REAL* rows, ptrdiff_t stride, ptrdiff_t targets, REAL* out,
    ptrdiff_t out_stride, int64_t* taken) {
    if (!are_below(count, index, targets)) {
        *taken = 0;
        return;
    }
    ptrdiff_t start = first * COLUMNS, columns = least(last * COLUMNS, width) - start;
    for (ptrdiff_t n = 0; n < count; n++) {
        const REAL* from = rows + n * stride + start;
        REAL* to = out + index[n] * out_stride + start;
        EACH_VECTOR(i, part, columns) {
            put(to + i, get(to + i, part) + get(from + i, part), part);
        }
    }
}

// out[k] = the sum of the rows[n] with index[n] == k, likewise.
EXPORT void sum_rows(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, ptrdiff_t count,
    const int64_t* index, const REAL* rows, ptrdiff_t stride, ptrdiff_t targets, REAL* out,
    ptrdiff_t out_stride, int64_t* taken) {
    ptrdiff_t start = first * COLUMNS, columns = least(last * COLUMNS, width) - start;
    for (ptrdiff_t k = 0; k < targets; k++)
        memset(out + k * out_stride + start, 0, (size_t)columns * sizeof(REAL));
    add_rows(first, last, width, count, index, rows, stride, targets, out, out_stride, taken);
}

// The distinct ids in increasing order, and each id's rank among them. `seen` has a bit for each
// possible id, `before` the number of distinct ids below those of each word of it. A negative id
// makes *num_distinct negative, and nothing else is written.
EXPORT void rank(ptrdiff_t count, const int64_t* ids, ptrdiff_t num_words, uint64_t* seen,
    int64_t* before, int64_t* distinct, int64_t* num_distinct, int64_t* ranks) {
    *num_distinct = -1;
    if (!are_below(count, ids, 64 * num_words)) return;
    memset(seen, 0, (size_t)num_words * sizeof(uint64_t));
    for (ptrdiff_t n = 0; n < count; n++) seen[ids[n] >> 6] |= 1ull << (ids[n] & 63);
    int64_t total = 0;
    for (ptrdiff_t word = 0; word < num_words; word++) {
        before[word] = total;
        for (uint64_t left = seen[word]; left; left &= left - 1)
            distinct[total++] = 64 * word + __builtin_ctzll(left);
    }
    *num_distinct = total;
    for (ptrdiff_t n = 0; n < count; n++) {
        uint64_t below = seen[ids[n] >> 6] & ((1ull << (ids[n] & 63)) - 1);
        ranks[n] = before[ids[n] >> 6] + __builtin_popcountll(below);
    }
}
