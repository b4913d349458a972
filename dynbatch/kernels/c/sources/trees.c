// Orders of trees that are given by heads.
#include "common.h"

// Rows of a table (6, n): order, children of each node in it, their places, their heads, and two of
// scratch, the first of which begins with -1 if the heads are not those of one tree.
EXPORT void bottom_up(ptrdiff_t n, const int64_t* heads, int64_t* table) {
    int64_t *order = table, *counts = order + n, *children = counts + n, *parents = children + n;
    int64_t *places = parents + n, *missing = places + n;
    ptrdiff_t roots = 0, end = 0, edges = 0;
    for (ptrdiff_t node = 0; node < n; node++) missing[node] = 0;
    for (ptrdiff_t node = 0; node < n; node++) {
        places[0] = -1;
        if (heads[node] < -1 || heads[node] >= n) return;
        if (heads[node] < 0) roots++;
        else missing[heads[node]]++;
    }
    if (roots != 1) return;
    for (ptrdiff_t node = 0; node < n; node++)
        if (!(counts[node] = missing[node])) order[end++] = node;
    for (ptrdiff_t k = 0; k < end; k++) {
        int64_t head = heads[order[k]];
        if (head >= 0 && !--missing[head]) order[end++] = head;
    }
    if (end < n) return;
    for (ptrdiff_t k = 0; k < n; k++) {  // where the children of each node begin
        places[order[k]] = k;
        missing[order[k]] = edges;
        edges += counts[order[k]];
    }
    for (ptrdiff_t node = 0; node < n; node++) {
        if (heads[node] < 0) continue;
        int64_t edge = missing[heads[node]]++;
        children[edge] = places[node];
        parents[edge] = heads[node];
    }
    for (ptrdiff_t k = 0; k < n; k++) missing[k] = counts[order[k]];
    for (ptrdiff_t k = 0; k < n; k++) counts[k] = missing[k];
}
