// Dropout whose mask is a function of stream and element number: the CUDA version of
// kernels/dropout.py.

// Source: Wellons 2018, lowbias32, as in kernels/dropout.py.
__device__ __forceinline__ unsigned hash32(unsigned value) {
    value = (value ^ value >> 16) * 0x7feb352du;
    value = (value ^ value >> 15) * 0x846ca68bu;
    return value ^ value >> 16;
}

// out_i = x_i * scales[k] where hash(hash(j) ^ streams[k]) >= bounds[k], else x_i * 0, for element
// j of segment k. Grid and block as for `over_elements`.
extern "C" __global__ void dropout(const REAL* x, const unsigned* streams, const unsigned* bounds,
    const REAL* scales, REAL* out, const int* offsets, int length, int count, int width,
    long long total) {
    const Segments segments = {offsets, length, count, width};
    over_elements(segments, total, [=](int k, long long, int, long long i) {
        const unsigned bits = hash32(hash32((unsigned)(i - segments.start(k))) ^ streams[k]);
        out[i] = x[i] * (REAL)(bits >= bounds[k]) * scales[k];  // a NaN stays one
    });
}
