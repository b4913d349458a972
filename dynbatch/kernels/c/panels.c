// Products with packed weights, for the loops of cells: see product.h.
#include "product.h"

// Pack a weight (N, K), whose rows lie `stride` apart, transposed.
EXPORT void pack_weight(
    ptrdiff_t K, ptrdiff_t N, const REAL* weight, ptrdiff_t stride, REAL* panels) {
    pack_panels(0, (N + PANEL - 1) / PANEL, K, N, weight, 1, stride, panels);
}

EXPORT void panel_product(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const REAL* a, ptrdiff_t lda,
    const REAL* panels, const REAL* base, ptrdiff_t base_stride, REAL* c, ptrdiff_t ldc) {
    product(M, K, N, a, lda, panels, base, base_stride, c, ldc);
}
