// The vector instructions that this processor has and this system saves, for choosing a library.
//
// Compiled for the oldest processors: nothing here may use what it asks for.
#include "common.h"
#ifdef __x86_64__
#include <cpuid.h>

// What the levels of the x86-64 ABI add, by the leaf of `cpuid` and the register that says so.
#define V3_LEAF_1 \
    (1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 | 1u << 29)  // FMA MOVBE OSXSAVE AVX F16C
#define V3_LEAF_7 (1u << 3 | 1u << 5 | 1u << 8)             // BMI1 AVX2 BMI2
#define V3_EXTENDED (1u << 5)                               // LZCNT
#define V4_LEAF_7 (1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31)  // AVX512 F DQ CD BW VL
#define BFLOAT16_LEAF_7_1 (1u << 5)                                       // AVX512_BF16

static int has(unsigned found, unsigned wanted) { return (found & wanted) == wanted; }

// The registers whose content the system keeps when another thread runs.
static unsigned saved(void) {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}
#endif

// level: 0, or of the x86-64 ABI 3 or 4, or 5: 4 with products of bfloat16.
EXPORT void instruction_level(int* level) {
    *level = 0;
#ifdef __x86_64__
    unsigned a, b, c, d, extended;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, V3_LEAF_1) || !has(saved(), 0x6)) return;
    if (!__get_cpuid(0x80000001, &a, &b, &extended, &d) || !has(extended, V3_EXTENDED)) return;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, V3_LEAF_7)) return;
    *level = 3;
    if (!has(b, V4_LEAF_7) || !has(saved(), 0xe6)) return;
    *level = 4;
    unsigned leaves = a;
    if (leaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && has(a, BFLOAT16_LEAF_7_1))
        *level = 5;
#endif
}
