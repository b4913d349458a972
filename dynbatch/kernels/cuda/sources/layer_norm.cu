#include "norms.cuh"
// Layer normalisation of rows (N, width): the CUDA version of kernels/layer_norm.py.
//
// Where mean is NULL it is RMS normalisation: nothing is subtracted from the rows. Grids and blocks
// as for `over_rows`.

// out = (x - mean) * rstd * weight + bias, and a copy of x; weight, bias and copy may be NULL.
extern "C" __global__ void layer_norm(const REAL* x, const REAL* weight, const REAL* bias, REAL eps,
    REAL* out, REAL* mean, REAL* rstd, REAL* kept, int rows, int width) {
    over_rows(rows, width, [&](const Team& team) {
        const REAL* from = x + team.row * width;
        REAL total = 0;
        if (mean)
            for (int i = team.first; i < width; i += team.step) total += from[i];
        normalize_row(team, x, total, weight, bias, eps, out, mean, rstd, kept, width);
    });
}

// out = rstd * (g - mean(g) - n * mean(g * n)), n = (x - mean) * rstd, g = dy * weight; with `add`
// it is added to out.
extern "C" __global__ void layer_norm_backward(const REAL* dy, const REAL* x, const REAL* weight,
    const REAL* mean, const REAL* rstd, REAL* out, int add, int rows, int width) {
    over_rows(rows, width, [&](const Team& team) {
        const long long row = team.row;
        const REAL *gradient = dy + row * width, *from = x + row * width;
        const REAL middle = mean ? mean[row] : (REAL)0, scale = rstd[row];
        REAL level = 0, along = 0;
        for (int i = team.first; i < width; i += team.step) {
            const REAL g = weight ? gradient[i] * weight[i] : gradient[i];
            level += g;
            along += g * ((from[i] - middle) * scale);
        }
        level = mean ? team.sum(level) / (REAL)width : (REAL)0;
        along = team.sum(along) / (REAL)width;
        for (int i = team.first; i < width; i += team.step) {
            const REAL g = weight ? gradient[i] * weight[i] : gradient[i];
            const REAL normal = (from[i] - middle) * scale;
            const REAL value = scale * (g - level - normal * along);
            out[row * width + i] = add ? out[row * width + i] + value : value;
        }
    });
}

struct Sums {
    REAL weight, bias;
};

__device__ __forceinline__ Sums from_lane(Sums a, int distance) {
    return {from_lane(a.weight, distance), from_lane(a.bias, distance)};
}

struct ParameterSums {
    typedef Sums State;
    const REAL *dy, *x, *mean, *rstd;
    REAL *dweight, *dbias;
    int width;

    static __device__ __forceinline__ State identity() { return {(REAL)0, (REAL)0}; }
    static __device__ __forceinline__ State combine(State a, State b) {
        return {a.weight + b.weight, a.bias + b.bias};
    }
    __device__ __forceinline__ void add(State& state, Element at) const {
        const REAL gradient = dy[at.i], value = x[at.i];
        const REAL centred = mean ? value - mean[at.row] : value;
        state.weight += rstd ? gradient * (centred * rstd[at.row]) : value;
        state.bias += gradient;
    }
    __device__ __forceinline__ void finish(State state, int k, int column, int) const {
        const long long at = (long long)k * width + column;
        if (dweight) dweight[at] = state.weight;
        if (dbias) dbias[at] = state.bias;
    }
    __device__ __forceinline__ void write(State, long long) const {}
};

// dweight = Σ dy * n and dbias = Σ dy within segments, either of which may be NULL. Where rstd is
// NULL, x and dy hold such sums of parts. Grid and block of `over_segments` of columns.
extern "C" __global__ void layer_norm_parameters(const REAL* dy, const REAL* x, const REAL* mean,
    const REAL* rstd, REAL* dweight, REAL* dbias, const int* offsets, int length, int count,
    int width) {
    over_segments<true>(
        ParameterSums{dy, x, mean, rstd, dweight, dbias, width}, {offsets, length, count, width});
}
