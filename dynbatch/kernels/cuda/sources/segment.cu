// Reductions of segments, and back: the CUDA version of what kernels/segment.py has besides rows by
// index.

template <class Operation>
struct Reduction : Operation {
    typedef REAL State;
    const REAL* x;
    REAL* out;
    int width;
    REAL empty;

    __device__ __forceinline__ void add(REAL& state, Element at) const {
        state = Operation::combine(state, x[at.i]);
    }
    __device__ __forceinline__ void finish(REAL state, int k, int column, int rows) const {
        out[(long long)k * width + column] = rows ? state : empty;
    }
    __device__ __forceinline__ void write(REAL, long long) const {}
};

// out[k] = the sum (operation 0), maximum (1) or minimum (2) of segment k of x, and `empty` where
// it has no rows. Grid and block as for `over_segments`.
extern "C" __global__ void reduce_segments(const REAL* x, REAL* out, const int* offsets, int length,
    int count, int width, int operation, REAL empty) {
    const Segments segments = {offsets, length, count, width};
    if (operation == 0) run_segments(Reduction<Add>{{}, x, out, width, empty}, segments);
    else if (operation == 1) run_segments(Reduction<Max>{{}, x, out, width, empty}, segments);
    else run_segments(Reduction<Min>{{}, x, out, width, empty}, segments);
}

// out[n] = values[k] for every row n of segment k. Grid and block as for `over_elements`.
extern "C" __global__ void spread_segments(const REAL* values, REAL* out, const int* offsets,
    int length, int count, int width, long long total) {
    over_elements(
        {offsets, length, count, width}, total, [&](int k, long long, int column, long long i) {
            out[i] = values[(long long)k * width + column];
        });
}
