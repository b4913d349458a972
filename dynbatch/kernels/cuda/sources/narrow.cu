// Values in bfloat16: the CUDA version of kernels/narrow.py.
//
// Kernels over `count` elements: block 256, grid count / 1024.

extern "C" __global__ void round_values(REAL* x, long long count) {
    map_elements(x, count, [=](long long i) { return REAL(Bfloat16(x[i])); });
}

extern "C" __global__ void narrow(REAL* x, unsigned short* out, long long count) {
    map_elements(x, count, [=](long long i) {
        const Bfloat16 rounded(x[i]);
        out[i] = rounded.half;
        return REAL(rounded);
    });
}

extern "C" __global__ void widen(const unsigned short* x, REAL* out, long long count) {
    map_elements(out, count, [=](long long i) { return __int_as_float((unsigned)x[i] << 16); });
}
