// What kernels that normalise rows (N, width) share.
//
// A warp does a row, with block 256 and grid N / 8; a block does one longer than WIDE, with grid N.

constexpr int WIDE = 1024;

// The threads that share a row: `step` of them, of which this one begins at element `first`.
struct Team {
    long long row;
    int first, step;
    REAL* partial;

    // The same for all threads of the team, each of which must call.
    __device__ __forceinline__ REAL sum(REAL value) const {
        return step > WARP ? block_reduce<Add>(value, partial) : warp_reduce<Add>(value);
    }
};

// Calls body(team) for the rows of a block.
template <class Body>
__device__ __forceinline__ void over_rows(int rows, int width, Body body) {
    __shared__ REAL partial[WARP];
    const int lane = threadIdx.x % WARP;
    const Team block = {(long long)blockIdx.x, (int)threadIdx.x, (int)blockDim.x, partial};
    const Team warp = {thread_in_grid() / WARP, lane, WARP, partial};
    const Team team = width > WIDE ? block : warp;
    if (team.row < rows) body(team);
}

// out = (x - mean) * rstd * weight + bias of the team's row, and a copy of it, where `total` is the
// sum of what this thread has of it. weight, bias, mean and kept may be NULL.
__device__ __forceinline__ void normalize_row(const Team& team, const REAL* x, REAL total,
    const REAL* weight, const REAL* bias, REAL eps, REAL* out, REAL* mean, REAL* rstd, REAL* kept,
    int width) {
    const long long row = team.row;
    const REAL* from = x + row * width;
    REAL squares = 0;
    const REAL middle = mean ? team.sum(total) / (REAL)width : (REAL)0;
    for (int i = team.first; i < width; i += team.step) {
        const REAL centred = from[i] - middle;
        squares += centred * centred;
    }
    const REAL scale = (REAL)1 / sqrt(team.sum(squares) / (REAL)width + eps);
    for (int i = team.first; i < width; i += team.step) {
        const REAL value = from[i], normal = (value - middle) * scale;
        if (kept) kept[row * width + i] = value;
        out[row * width + i] = (weight ? normal * weight[i] : normal) + (bias ? bias[i] : 0);
    }
    if (team.first == 0) {
        if (mean) mean[row] = middle;
        rstd[row] = scale;
    }
}
