// Rotary embeddings and sinusoids: the CUDA version of kernels/positions.py.
//
// A segment is a run of neighbouring positions, the first of which is starts[k]. `turns` holds
// cosines and sines, (positions, 2, frequencies).

// out = the rows of heads of `features` each, with pairs (a, b) of the first 2 * half features
// turned to (a cos - b sin, b cos + a sin). `width` counts a head's pairs and the features that
// stay; a thread does one of them, so that out may be x. Grid and block as for `over_elements`.
extern "C" __global__ void rotary(const REAL* x, const REAL* turns, const int* starts, int features,
    int half, int is_interleaved, int is_inverse, REAL* out, const int* offsets, int length,
    int count, int width, long long total) {
    const Segments segments = {offsets, length, count, width};
    const int each = features - half;
    over_elements(segments, total, [=](int k, long long n, int column, long long) {
        const int place = column % each;
        const long long head = (n * (width / each) + column / each) * features;
        if (place >= half) {
            out[head + half + place] = x[head + half + place];
            return;
        }
        const long long turn = (starts[k] + n - segments.start(k)) * 2 * half + place;
        const REAL cosine = turns[turn],
                   sine = is_inverse ? -turns[turn + half] : turns[turn + half];
        const long long first = head + (is_interleaved ? 2 * place : place);
        const long long second = first + (is_interleaved ? 1 : half);
        const REAL a = x[first], b = x[second];
        out[first] = a * cosine - b * sine;
        out[second] = b * cosine + a * sine;
    });
}

// out = sines and cosines in turn, or all sines first. Grid and block as for `over_elements`.
extern "C" __global__ void sinusoidal(const REAL* turns, const int* starts, REAL* out,
    const int* offsets, int length, int count, int width, long long total, int is_interleaved) {
    const Segments segments = {offsets, length, count, width};
    const int sines = (width + 1) / 2;
    over_elements(segments, total, [=](int k, long long n, int column, long long i) {
        const bool is_sine = is_interleaved ? column % 2 == 0 : column < sines;
        const int frequency = is_interleaved ? column / 2 : is_sine ? column : column - sines;
        const long long position = starts[k] + n - segments.start(k);
        out[i] = turns[(2 * position + is_sine) * sines + frequency];
    });
}
