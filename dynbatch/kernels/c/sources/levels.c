// The longest chain that each of many calls waits for.
#include "common.h"

// depth (n), waiting (n): zeros; begins (n + 1), queue (n), by_read (edges): scratch.
EXPORT void levels(ptrdiff_t n, ptrdiff_t edges, const int64_t* readers, const int64_t* read,
    int64_t* depth, int64_t* waiting, int64_t* begins, int64_t* queue, int64_t* by_read) {
    ptrdiff_t end = 0;
    for (ptrdiff_t k = 0; k <= n; k++) begins[k] = 0;
    for (ptrdiff_t e = 0; e < edges; e++) begins[read[e]]++, waiting[readers[e]]++;
    for (ptrdiff_t k = 1; k <= n; k++) begins[k] += begins[k - 1];
    for (ptrdiff_t e = 0; e < edges; e++) by_read[--begins[read[e]]] = readers[e];
    for (ptrdiff_t k = 0; k < n; k++)
        if (!waiting[k]) queue[end++] = k;
    for (ptrdiff_t k = 0; k < end; k++) {  // of `end`, which grows
        int64_t call = queue[k], next = depth[call] + 1;
        for (int64_t e = begins[call]; e < begins[call + 1]; e++) {
            int64_t reader = by_read[e];
            if (depth[reader] < next) depth[reader] = next;
            if (!--waiting[reader]) queue[end++] = reader;
        }
    }
}
