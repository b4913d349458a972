// Values in bfloat16: the CUDA version of kernels/narrow.py.
//
// Kernels over `count` elements: block 256, grid count / 1024.

// The upper half of x, rounded; `factor` leaves NaN as it is, and its upper half must be one, too.
__device__ __forceinline__ unsigned upper_half(REAL x) {
    const unsigned bits = __float_as_int(factor<7>(x));
    return bits >> 16 | (x != x ? 0x40 : 0);
}

extern "C" __global__ void round_values(REAL* x, long long count) {
    map_elements(x, count, [=](long long i) { return __int_as_float(upper_half(x[i]) << 16); });
}

extern "C" __global__ void narrow(REAL* x, unsigned short* out, long long count) {
    map_elements(x, count, [=](long long i) {
        const unsigned half = upper_half(x[i]);
        out[i] = half;
        return __int_as_float(half << 16);
    });
}

extern "C" __global__ void widen(const unsigned short* x, REAL* out, long long count) {
    map_elements(out, count, [=](long long i) { return __int_as_float((unsigned)x[i] << 16); });
}
