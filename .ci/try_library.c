// try_library LIBRARY ...: loads compiled kernels of a wheel, and prints digests of what some compute.
// The same program for Linux and, under Wine, for Windows: the digests must be equal.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <windows.h>
#define OPEN(path) ((void*)LoadLibraryA(path))
#define FIND(library, name) ((void*)GetProcAddress((HMODULE)(library), name))
#else
#include <dlfcn.h>
#define OPEN(path) dlopen(path, RTLD_NOW)
#define FIND(library, name) dlsym(library, name)
#endif

enum { M = 37, K = 300, N = 91, COUNT = 1003 };

typedef void products(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const void* a, int a_is_short,
    ptrdiff_t a_row, ptrdiff_t a_term, const void* b, int b_is_short, ptrdiff_t b_term,
    ptrdiff_t b_column, const float* base, ptrdiff_t base_stride, float* c, ptrdiff_t ldc);
typedef void elements(ptrdiff_t first, ptrdiff_t last, float* x, void* out);

// Numbers between -1 and 1, the same everywhere.
static float* draws(size_t count, uint32_t seed) {
    float* x = malloc(count * sizeof *x);
    for (size_t i = 0; i < count; ++i) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed / 2147483648.0f;
    }
    return x;
}

static void tell(const char* name, const void* data, size_t size) {
    uint64_t digest = 1469598103934665603u;  // FNV-1a
    const unsigned char* bytes = data;
    for (size_t i = 0; i < size; ++i) digest = (digest ^ bytes[i]) * 1099511628211u;
    printf("%s %08x%08x\n", name, (unsigned)(digest >> 32), (unsigned)digest);
}

static void compute(const char* path, void* library) {
    const char* slash = strrchr(path, '/');
    const char* name = slash ? slash + 1 : path;
    if (!strncmp(name, "blas-float-", 11)) {
        float *a = draws(M * K, 1), *b = draws(K * N, 2), *c = draws(M * N, 3);
        ((products*)FIND(library, "products"))(M, K, N, a, 0, K, 1, b, 0, N, 1, NULL, 0, c, N);
        tell("products", c, M * N * sizeof *c);
    }
    float *x = draws(COUNT, 4), *out = draws(COUNT, 5);
    if (!strncmp(name, "narrow-float-", 13)) {
        ((elements*)FIND(library, "narrow"))(0, COUNT, x, out);
        tell("narrow", out, COUNT * sizeof(uint16_t));
    }
    if (!strncmp(name, "loops-float-", 12)) {
        ((elements*)FIND(library, "each_gelu_tanh_of"))(0, COUNT, x, out);
        tell("gelu", out, COUNT * sizeof *out);
    }
}

int main(int count, char** paths) {
    int loaded = 0;
    for (int i = 1; i < count; ++i) {
        void* library = OPEN(paths[i]);
        if (library) ++loaded, compute(paths[i], library);
        else printf("not loaded: %s\n", paths[i]);
    }
    printf("%d of %d libraries loaded\n", loaded, count - 1);
    return loaded != count - 1;
}
