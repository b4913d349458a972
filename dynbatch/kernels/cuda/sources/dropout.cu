// Dropout whose mask is a function of stream and element number: the CUDA version of
// kernels/dropout.py.

// out_i = x_i * scales[k] where hash(hash(j) ^ streams[k]) >= bounds[k], else x_i * 0, for element
// j of segment k. Grid and block as for `over_elements`.
extern "C" __global__ void dropout(const REAL* x, const unsigned* streams, const unsigned* bounds,
    const REAL* scales, REAL* out, const int* offsets, int length, int count, int width,
    long long total) {
    const Segments segments = {offsets, length, count, width};
    over_elements(segments, total, [=](int k, long long, int, long long i) {
        const unsigned bits = random_bits((unsigned)(i - segments.start(k)), streams[k]);
        out[i] = x[i] * (REAL)(bits >= bounds[k]) * scales[k];  // a NaN stays one
    });
}
