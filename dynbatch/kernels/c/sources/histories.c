// Keys of calls: CRC-32 of texts that hold the keys of what they read in decimals.
#include "common.h"

static void fill_table(uint32_t* table) {
    uint32_t value = 1;
    table[0] = 0;
    for (int step = 128; step; step /= 2) {
        value = (value >> 1) ^ (value & 1 ? 0xEDB88320u : 0);
        for (int k = 0; k < 256; k += 2 * step) table[step + k] = value ^ table[k];
    }
}

INLINE uint32_t add_text(uint32_t state, const char* text, const char* end, const uint32_t* table) {
    for (; text < end; text++) state = (state >> 8) ^ table[(state ^ (uint8_t)*text) & 255];
    return state;
}

// The key after `begin` of a call that reads these.
static int64_t key_of(ptrdiff_t begin, const int64_t* read, int64_t count, ptrdiff_t is_continued,
    const uint32_t* table) {
    uint32_t state = ~(uint32_t)begin;
    char text[12], *const end = text + sizeof text;
    for (int64_t k = 0; k < count; k++) {
        char* p = end;
        uint32_t key = (uint32_t)read[k];
        do *--p = (char)('0' + key % 10);
        while (key /= 10);
        if (k || is_continued) *--p = ' ', *--p = ',';
        state = add_text(state, p, end, table);
    }
    text[0] = ']';
    return (uint32_t)~add_text(state, text, text + 1, table);
}

EXPORT void keys_of_calls(ptrdiff_t n, const int64_t* reads, const int64_t* counts, ptrdiff_t begin,
    ptrdiff_t edge_begin, ptrdiff_t has_edges, ptrdiff_t is_continued, int64_t* edges,
    int64_t* keys) {
    uint32_t table[256];
    fill_table(table);
    for (ptrdiff_t k = 0; k < n; k++) {
        for (int64_t e = 0; e < counts[k]; e++) {
            edges[e] = reads[e] < 0 ? keys[-1 - reads[e]] : reads[e];
            if (has_edges) edges[e] = key_of(edge_begin, edges + e, 1, is_continued, table);
        }
        keys[k] = key_of(begin, edges, counts[k], is_continued, table);
        reads += counts[k], edges += counts[k];
    }
}
