// The subset of CUDA C++ that the kernels use, for g++. Included before a kernel file's text.
#pragma once
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <type_traits>
#include <utility>

#include "scheduler.h"

// Qualifiers. Blocks run one after another, so shared memory may be static.
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__

// Vector types, aligned as on the device: a misaligned one is a fault there.
#define SHIM_VECTORS(T, NAME) \
    struct __attribute__((aligned(2 * sizeof(T)))) NAME##2 { T x, y; }; \
    struct __attribute__((aligned(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)))) NAME##4 { T x, y, z, w; }; \
    static inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; } \
    static inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SHIM_VECTORS(float, float)
SHIM_VECTORS(double, double)
SHIM_VECTORS(int, int)
SHIM_VECTORS(unsigned, uint)
SHIM_VECTORS(long long, longlong)

#define threadIdx (shim::thread_index)
#define blockIdx (shim::block_index)
#define blockDim (shim::block_extent)
#define gridDim (shim::grid_extent)
#define warpSize 32

namespace shim {

// Calls a kernel with the argument layout of cuLaunchKernel: one pointer to each argument.
template <class... A>
struct Call {
    void (*kernel)(A...);
    void** arguments;

    template <size_t... I>
    __attribute__((no_sanitize("thread"))) void operator()(std::index_sequence<I...>) const {
        kernel(*(std::remove_reference_t<A>*)arguments[I]...);
    }
    __attribute__((no_sanitize("thread"))) static void body(void* self) {
        (*(const Call*)self)(std::index_sequence_for<A...>{});
    }
};

template <class... A>
int launch(const Launch* configuration, void (*kernel)(A...), void** arguments) {
    Call<A...> call{kernel, arguments};
    return run(configuration, (const void*)kernel, &Call<A...>::body, &call);
}

// Each lane deposits a value and says whose it wants; the last lane to arrive hands out all.
template <class T>
inline T exchange(uint32_t mask, T value, int source, Place place) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = warp_collective(mask, place, Collective::SHUFFLE, source, bits);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t ballot(uint32_t mask, bool predicate, Place place) {
    return (uint32_t)warp_collective(mask, place, Collective::BALLOT, -1, predicate);
}

inline int lane() { return (int)(current->number % WARP); }

}  // namespace shim

// The caller's file and line, so that a report can name them and divergence can be seen.
#define SHIM_PLACE const char *file = __builtin_FILE(), unsigned line = __builtin_LINE()
#define SHIM_HERE shim::Place{file, line}

inline void __syncthreads(SHIM_PLACE) { shim::block_barrier(SHIM_HERE); }
inline void __syncwarp(uint32_t mask = 0xffffffffu, SHIM_PLACE) {
    shim::warp_collective(mask, SHIM_HERE, shim::Collective::SYNC, -1, 0);
}
template <class T>
inline T __shfl_sync(uint32_t mask, T value, int source, int width = 32, SHIM_PLACE) {
    const int first = shim::lane() & ~(width - 1);
    return shim::exchange(mask, value, first | (source & (width - 1)), SHIM_HERE);
}
template <class T>
inline T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32, SHIM_PLACE) {
    const int first = shim::lane() & ~(width - 1), source = shim::lane() ^ bits;
    return shim::exchange(mask, value, source < first + width ? source : -1, SHIM_HERE);
}
template <class T>
inline T __shfl_down_sync(uint32_t mask, T value, unsigned distance, int width = 32, SHIM_PLACE) {
    const int lane = shim::lane(), source = lane + (int)distance;
    const bool inside = (lane & (width - 1)) + (int)distance < width;
    return shim::exchange(mask, value, inside ? source : -1, SHIM_HERE);
}
template <class T>
inline T __shfl_up_sync(uint32_t mask, T value, unsigned distance, int width = 32, SHIM_PLACE) {
    const int lane = shim::lane(), source = lane - (int)distance;
    const bool inside = (lane & (width - 1)) >= (int)distance;
    return shim::exchange(mask, value, inside ? source : -1, SHIM_HERE);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate, SHIM_PLACE) {
    return shim::ballot(mask, predicate != 0, SHIM_HERE);
}
inline int __any_sync(uint32_t mask, int predicate, SHIM_PLACE) {
    return shim::ballot(mask, predicate != 0, SHIM_HERE) != 0;
}
inline int __all_sync(uint32_t mask, int predicate, SHIM_PLACE) {
    return shim::ballot(mask, predicate == 0, SHIM_HERE) == 0;
}
// Tensor cores and copies beside other work, by the names of mma.cuh.
inline unsigned tf32_bits(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}
inline unsigned shim_bfloat16(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) return bits >> 16 | ((bits & 0x7fffffu) != 0) << 6;
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
inline unsigned bfloat16_bits(float low, float high) {
    return shim_bfloat16(high) << 16 | shim_bfloat16(low);
}
#define SHIM_PRODUCT(name, is_tf32) \
    inline void name(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, \
                     unsigned b0, unsigned b1, SHIM_PLACE) { \
        shim::Fragments own{c, {a0, a1, a2, a3}, {b0, b1}, is_tf32}; \
        shim::warp_collective(0xffffffffu, SHIM_HERE, shim::Collective::MATRIX, -1, (uint64_t)&own); \
    }
SHIM_PRODUCT(mma_tf32, true)
SHIM_PRODUCT(mma_bfloat16, false)
// The device may write at any time from here to the wait: until then the place holds NaN.
inline void copy_later(float* to, const float* from) {
    if (((uintptr_t)to | (uintptr_t)from) % 16) shim::fail("a copy from or to no multiple of 16");
    for (int i = 0; i < 4; ++i) to[i] = NAN;
    shim::begin_copy({to, from});
}
inline void wait_for_copies() {
    for (shim::Copy copy; shim::take_copy(&copy);)
        for (int i = 0; i < 4; ++i) copy.to[i] = copy.from[i];
}
inline uint32_t __activemask() { return shim::warps[shim::current->number / shim::WARP].alive; }
inline void __threadfence() {}
inline void __threadfence_block() {}

// Atomics: one fiber runs at a time. The checker is told, and must not see the plain accesses.
#define SHIM_ATOMIC template <class T, class U> \
    __attribute__((no_sanitize("thread"), noinline)) T
#define SHIM_READ_MODIFY_WRITE(name, expression) \
    SHIM_ATOMIC name(T* address, U operand) { \
        shim::note_atomic((void*)address, sizeof(T), __builtin_return_address(0)); \
        const T value = (T)operand, old = *address; \
        *address = (expression); \
        return old; \
    }
SHIM_READ_MODIFY_WRITE(atomicAdd, old + value)
SHIM_READ_MODIFY_WRITE(atomicSub, old - value)
SHIM_READ_MODIFY_WRITE(atomicMax, old > value ? old : value)
SHIM_READ_MODIFY_WRITE(atomicMin, old < value ? old : value)
SHIM_READ_MODIFY_WRITE(atomicExch, value)
SHIM_READ_MODIFY_WRITE(atomicOr, old | value)
SHIM_READ_MODIFY_WRITE(atomicAnd, old & value)
SHIM_ATOMIC atomicCAS(T* address, U expected, U desired) {
    shim::note_atomic((void*)address, sizeof(T), __builtin_return_address(0));
    const T old = *address;
    if (old == (T)expected) *address = (T)desired;
    return old;
}

// Arithmetic.
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
template <class T> inline T __ldg(const T* address) { return *address; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
inline int __float_as_int(float x) { int bits; std::memcpy(&bits, &x, 4); return bits; }
inline float __int_as_float(int bits) { float x; std::memcpy(&x, &bits, 4); return x; }
template <class T> inline T max(T a, T b) { return a > b ? a : b; }
template <class T> inline T min(T a, T b) { return a < b ? a : b; }
// As in CUDA C++, the float overloads of the C functions live in the global namespace.
using std::exp; using std::log; using std::sqrt; using std::tanh; using std::fabs; using std::pow;
using std::log1p; using std::expm1; using std::floor; using std::ceil; using std::isnan;
using std::isinf; using std::fmax; using std::fmin; using std::fma; using std::erf; using std::cos;
using std::sin;
inline double erfcx(double x) {  // exp(x^2) erfc(x), of which beyond 50 only the asymptote is left
    const long double z = x;
    if (z > 50) return (double)(0.56418958354775628695L / z * (1 - 0.5L / (z * z)));
    return (double)(std::exp(z * z) * std::erfc(z));
}
inline float erfcx(float x) { return (float)erfcx((double)x); }

// What the compiler makes of a kernel's parameters, as text such as "*f4,*i8,i4": what the simulator
// holds arguments against. '*' a pointer; f, i, u, b or V (a struct); then the size in bytes.
namespace shim {

template <class T>
inline void describe(char*& out) {
    using Value = std::remove_cv_t<std::remove_pointer_t<T>>;
    if (std::is_pointer_v<T>) *out++ = '*';
    *out++ = std::is_same_v<Value, bool> ? 'b' : std::is_floating_point_v<Value> ? 'f'
           : !std::is_integral_v<Value> ? 'V' : std::is_signed_v<Value> ? 'i' : 'u';
    unsigned digits = sizeof(Value), scale = 1;
    while (digits / scale >= 10) scale *= 10;
    for (; scale; scale /= 10) *out++ = (char)('0' + digits / scale % 10);
    *out++ = ',';
}

template <class... A>
inline void describe_parameters(void (*)(A...), char* out) {
    (describe<A>(out), ...);
    *out = 0;
}

}  // namespace shim
