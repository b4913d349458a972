// Rows gathered by tables, and the batches of calls that they are gathered for.
#include <sched.h>

#include "common.h"

// A `GatherTable` with the array that it fills, or whose rows it gives back, of `width` columns.
// `sources` holds two numbers for each array that terms come from: its address, or 0, and the
// elements from row to row. `of` and `starts` may be 0.
typedef struct {
    int64_t array, stride, width, rows, of, starts, sources;
} gather_table;

#define AT(type, address) ((type*)(intptr_t)(address))

// The row that is term m of a table; NULL for zeros, and for gradients that nobody asks for.
INLINE REAL* term(const gather_table* t, ptrdiff_t m) {
    const int64_t* of = AT(int64_t, t->of);
    const int64_t* rows = AT(int64_t, t->rows);
    if (of && of[m] < 0) return NULL;
    const int64_t* source = AT(int64_t, t->sources) + (of ? 2 * of[m] : 0);
    return source[0] ? AT(REAL, source[0]) + rows[m] * source[1] : NULL;
}

INLINE void add_row(REAL* to, const REAL* from, ptrdiff_t width) {
    EACH_VECTOR(i, part, width) { put(to + i, get(to + i, part) + get(from + i, part), part); }
}

EXPORT void gather(ptrdiff_t first, ptrdiff_t end, const void* table) {
    const gather_table* t = table;
    const int64_t* starts = AT(int64_t, t->starts);
    const size_t bytes = (size_t)t->width * sizeof(REAL);
    for (ptrdiff_t n = first; n < end; n++) {
        REAL* to = AT(REAL, t->array) + n * t->stride;
        const ptrdiff_t low = starts ? starts[n] : n, high = starts ? starts[n + 1] : n + 1;
        int is_empty = 1;
        for (ptrdiff_t m = low; m < high; m++) {
            const REAL* from = term(t, m);
            if (!from) continue;
            if (is_empty) memcpy(to, from, bytes);
            else add_row(to, from, t->width);
            is_empty = 0;
        }
        if (is_empty) memset(to, 0, bytes);
    }
}

// Give back one of `parts` parts of the columns. Rows meet in those that they are added to, columns
// do not: threads that take parts add the rows to each element in their order.
EXPORT void give_back(
    ptrdiff_t first, ptrdiff_t end, ptrdiff_t part, ptrdiff_t parts, const void* table) {
    const gather_table* t = table;
    const int64_t* starts = AT(int64_t, t->starts);
    const ptrdiff_t vectors = (t->width + LANES - 1) / LANES;
    const ptrdiff_t left = vectors * part / parts * LANES;
    const ptrdiff_t width = least(vectors * (part + 1) / parts * LANES, t->width) - left;
    for (ptrdiff_t n = first; n < end; n++) {
        const REAL* from = AT(REAL, t->array) + n * t->stride + left;
        const ptrdiff_t low = starts ? starts[n] : n, high = starts ? starts[n + 1] : n + 1;
        for (ptrdiff_t m = low; m < high; m++) {
            REAL* to = term(t, m);
            if (to) add_row(to + left, from, width);
        }
    }
}

// One pass of a loop, as `compiler/c` prints it.
typedef void pass(ptrdiff_t count, const int64_t* steps, int given, int ahead, int part,
    const int64_t* at, const void* product);

// What batches of calls of one loop need: a pass, its arrays and the function it multiplies with,
// whether it makes the maps of streams too, and the tables of what is gathered before a batch and
// given back after it.
//
// `slots` times `num_places` numbers lie at `at`: threads that run at the same time have temporary
// values of their own. `least`: rows that are worth a thread.
typedef struct {
    int64_t run, at, product, ahead, gathers, num_gathers, returns, num_returns, slots, num_places,
        least;
} bound_batches;

// Rows of a batch that run together: what they make stays in the second-level cache.
#define ROWS 96

static void run_rows(const bound_batches* loop, int slot, ptrdiff_t first, ptrdiff_t end) {
    const int64_t* at = AT(int64_t, loop->at) + slot * loop->num_places;
    for (ptrdiff_t top = first; top < end; top += ROWS) {
        const ptrdiff_t bottom = least(top + ROWS, end);
        for (ptrdiff_t k = 0; k < loop->num_gathers; k++)
            gather(top, bottom, AT(gather_table, loop->gathers) + k);
        const int64_t step[] = {top, bottom, bottom - top, -1};
        AT(pass, loop->run)(1, step, 0, (int)loop->ahead, 0, at, AT(void, loop->product));
    }
}

// Parts of all batches are numbered in their order; progress[0] of them are taken, [1] have ended.
static ptrdiff_t take(int64_t* progress) {
    return (ptrdiff_t)__atomic_fetch_add(progress, 1, __ATOMIC_SEQ_CST);
}

static void finish(int64_t* progress) { __atomic_fetch_add(progress + 1, 1, __ATOMIC_SEQ_CST); }

static void wait_for(ptrdiff_t parts, const int64_t* progress) {
    for (unsigned times = 1; __atomic_load_n(progress + 1, __ATOMIC_SEQ_CST) < parts; times++)
        if (times % 1024) relax();
        else sched_yield();  // who has a part may wait for this processor
}

// Runs batches, (loop, first row, end row) each, in order. `threads` threads call it, each with its
// own number, and take parts of a batch from each other; those of the next wait for all of them.
EXPORT void run_batches(int thread, int threads, ptrdiff_t count, const int64_t* batches,
    const void* loops, int64_t* progress) {
    ptrdiff_t mine = take(progress), before = 0;
    for (ptrdiff_t b = 0; b < count; b++) {
        const bound_batches* loop = (const bound_batches*)loops + batches[3 * b];
        const ptrdiff_t first = batches[3 * b + 1], end = batches[3 * b + 2], rows = end - first;
        const ptrdiff_t most = threads * (ptrdiff_t)ROWS;
        const int is_shared = loop->slots >= threads && rows >= 2 * loop->least;
        const ptrdiff_t parts = is_shared ? threads * ((rows + most - 1) / most) : 1;
        for (; mine < before + parts; mine = take(progress)) {
            wait_for(before, progress);
            const ptrdiff_t k = mine - before;
            run_rows(loop, is_shared ? thread : 0, first + rows * k / parts,
                first + rows * (k + 1) / parts);
            finish(progress);
        }
        before += parts;
        if (!loop->num_returns) continue;
        const ptrdiff_t returns = is_shared ? threads : 1;
        for (; mine < before + returns; mine = take(progress)) {
            wait_for(before, progress);
            for (ptrdiff_t k = 0; k < loop->num_returns; k++)
                give_back(first, end, mine - before, returns, AT(gather_table, loop->returns) + k);
            finish(progress);
        }
        before += returns;
    }
}
