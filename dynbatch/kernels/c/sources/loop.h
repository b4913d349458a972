// What printed loops of cells share: see `compiler/c/loop_text.py`.
#include "elementwise.h"
#include "bfloat16.h"

typedef void product_function(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const REAL* a, ptrdiff_t lda,
    const REAL* panels, const REAL* base, ptrdiff_t base_stride, REAL* c, ptrdiff_t ldc);

// Steps of attention to a memory: see `kernels/c/attention/steps.py`.
typedef void forward_step(const void* shared, ptrdiff_t t, ptrdiff_t n, const REAL* x,
    ptrdiff_t x_stride, REAL* out, ptrdiff_t out_stride);
typedef void backward_step(const void* shared, ptrdiff_t t, ptrdiff_t n, const REAL* dy,
    ptrdiff_t dy_stride, const REAL* x, ptrdiff_t x_stride, REAL* dx, ptrdiff_t dx_stride);

// What forward left for backward, as `LoopText.left` names it: numbers, or their upper halves. The
// state that a step finds is such where `found` says so, else the initial one of the sentence.
#ifdef IN_16_BITS
#define KEPT uint16_t
#define get_kept get_short
#else
#define KEPT REAL
#define get_kept get
#endif
#define ROW_OF_STATE(p, i) ((p) + (i) * (ptrdiff_t)(found ? sizeof(KEPT) : sizeof(REAL)))
INLINE vector get_state(const char* p, ptrdiff_t j, ptrdiff_t n, int found) {
    return found ? get_kept((const KEPT*)p + j, n) : get((const REAL*)p + j, n);
}
static void take_state(
    ptrdiff_t n, ptrdiff_t N, const char* x, ptrdiff_t stride, int found, REAL* out) {
    for (ptrdiff_t i = 0; i < n; i++) EACH_VECTOR(j, m, N)
    put(out + i * N + j, get_state(ROW_OF_STATE(x, i * stride), j, m, found), m);
}

// Panels of N columns begin at whole cache lines, on any processor.
#define LINE ((ptrdiff_t)(64 / sizeof(REAL)))
#define WHOLE(N) (((N) + LINE - 1) / LINE * LINE)

static void fill_rows(ptrdiff_t n, ptrdiff_t N, const REAL* base, REAL* c, ptrdiff_t ldc) {
    for (ptrdiff_t i = 0; i < n; i++)
        if (base) memcpy(c + i * ldc, base, (size_t)N * sizeof(REAL));
        else memset(c + i * ldc, 0, (size_t)N * sizeof(REAL));
}

// out[i] = x[index[i]] for n rows of N elements, without an index x[i]; and out[index[i]] = x[i].
static void take_rows(
    ptrdiff_t n, ptrdiff_t N, const REAL* x, ptrdiff_t stride, const int64_t* index, REAL* out) {
    for (ptrdiff_t i = 0; i < n; i++)
        memcpy(out + i * N, x + (index ? index[i] : i) * stride, (size_t)N * sizeof(REAL));
}
static void put_rows(ptrdiff_t n, ptrdiff_t N, const REAL* x, ptrdiff_t stride,
    const int64_t* index, REAL* out, ptrdiff_t out_stride) {
    for (ptrdiff_t i = 0; i < n; i++)
        memcpy(out + index[i] * out_stride, x + i * stride, (size_t)N * sizeof(REAL));
}

// Vectors of elements that lie `step` apart.
INLINE vector get_every(const REAL* p, ptrdiff_t step, ptrdiff_t m) {
    vector x = {0};
    for (ptrdiff_t i = 0; i < m; i++) x[i] = p[i * step];
    return x;
}
INLINE void put_every(REAL* p, ptrdiff_t step, vector x, ptrdiff_t m) {
    for (ptrdiff_t i = 0; i < m; i++) p[i * step] = x[i];
}
