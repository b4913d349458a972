// Softmax cross-entropy of rows of logits, and the gradients of its tokens.

constexpr int ROWS = 8;  // of a block whose warps have a row each

template <bool BLOCK, class Operation>
__device__ __forceinline__ REAL reduce_row(REAL value, REAL* partial) {
    return BLOCK ? block_reduce<Operation>(value, partial) : warp_reduce<Operation>(value);
}

// One row by a warp, or by the whole block. The order of its sums depends on `vocabulary` only.
// `p` is the row's distribution, or NULL.
template <bool BLOCK>
__device__ __forceinline__ void row_loss(REAL* logits, const REAL* bias, int id, const REAL* p,
    REAL weight, const REAL* scale, REAL* loss, int vocabulary, REAL hit, REAL uniform) {
    __shared__ REAL partial[WARP];
    const int own = BLOCK ? threadIdx.x : threadIdx.x % WARP, step = BLOCK ? blockDim.x : WARP;
    if (weight == 0) {  // ignored, whatever its logits are
        if (scale)
            for (int i = own; i < vocabulary; i += step) logits[i] = 0;
        if (own == 0) *loss = 0;
        return;  // the whole warp, or block
    }
    auto logit = [&](int i) { return bias ? logits[i] + bias[i] : logits[i]; };

    Normalizer mine = Normalizer::identity();
    for (int i = own; i < vocabulary; i += step) mine.take(logit(i));
    const REAL highest = reduce_row<BLOCK, Max>(mine.peak, partial);
    const REAL total = reduce_row<BLOCK, Add>(mine.sum * exp(mine.peak - highest), partial);

    if (p) {  // loss = Σ q · log(total) - Σ q z, q the smoothed distribution; 0 · -inf is 0
        REAL mass = 0, inner = 0;
        for (int i = own; i < vocabulary; i += step) {
            const REAL q = hit * p[i] + uniform;
            mass += q;
            if (q != 0) inner += q * (logit(i) - highest);
        }
        mass = reduce_row<BLOCK, Add>(mass, partial);
        inner = reduce_row<BLOCK, Add>(inner, partial);
        if (own == 0) *loss = (mass * log(total) - inner) * weight;  // early: fewer registers
        if (scale) {
            const REAL factor = *scale * mass / total;
            for (int i = own; i < vocabulary; i += step)
                logits[i] = exp(logit(i) - highest) * factor - (hit * p[i] + uniform) * *scale;
        }
        return;
    }

    // The thread that has the target reads it before it writes the gradient there, and has the
    // loss.
    const bool known = id >= 0 && id < vocabulary;
    const bool has_target = own == (known ? id % step : 0);
    const REAL target = known && has_target ? logit(id) - highest : (REAL)0;
    REAL shifts = 0;
    if (scale || uniform != 0) {
        const REAL gradient = scale ? *scale : (REAL)0, factor = gradient / total;
        const REAL spread = uniform != 0 ? uniform * gradient : (REAL)0;
        for (int i = own; i < vocabulary; i += step) {
            const REAL z = logit(i) - highest;
            shifts += z;
            if (scale) logits[i] = exp(z) * factor - spread - (i == id ? hit * gradient : (REAL)0);
        }
        if (uniform != 0) shifts = reduce_row<BLOCK, Add>(shifts, partial);
    }
    if (has_target) {
        REAL value = log(total) - hit * target;
        if (uniform != 0) value -= uniform * shifts;
        *loss = value * weight;
    }
}

template <bool BLOCK>
__device__ __forceinline__ void row_losses(REAL* logits, const REAL* bias, const int* ids,
    const REAL* distributions, const REAL* weights, const REAL* scale, REAL* losses, int first,
    int rows, int vocabulary, REAL hit, REAL uniform) {
    const int row = BLOCK ? blockIdx.x : blockIdx.x * ROWS + threadIdx.x / WARP;
    if (row >= rows) return;  // the whole warp
    REAL* z = logits + (long long)row * vocabulary;
    const int id = ids[first + row];
    const REAL weight = weights[first + row], *own_scale = scale ? scale + row : nullptr;
    const REAL* p = distributions ? distributions + (long long)row * vocabulary : nullptr;
    row_loss<BLOCK>(z, bias, id, p, weight, own_scale, losses + row, vocabulary, hit, uniform);
}

// losses[n] = weights[n] · (logsumexp(z) - hit · z[id] - uniform · Σ z) for z = logits[n] + bias,
// each z less its maximum. With `scale`, the gradients of the unweighted losses, the logits become
// scale[n] · (softmax(z) - uniform - hit · [i = id]); without, they stay. `ids` and `weights` begin
// `first` tokens before the others. With `distributions` (rows, vocabulary), [i = id] is p[i].
// Where a weight is 0, loss and gradients are 0.
//
// Block (256), grid (rows / 8).
extern "C" __global__ void softmax_loss(REAL* logits, const REAL* bias, const int* ids,
    const REAL* distributions, const REAL* weights, const REAL* scale, REAL* losses, int first,
    int rows, int vocabulary, REAL hit, REAL uniform) {
    row_losses<false>(logits, bias, ids, distributions, weights, scale, losses, first, rows,
        vocabulary, hit, uniform);
}

// The same of long rows, a block to each: block (512), grid (rows).
extern "C" __global__ void softmax_loss_of_long_rows(REAL* logits, const REAL* bias, const int* ids,
    const REAL* distributions, const REAL* weights, const REAL* scale, REAL* losses, int first,
    int rows, int vocabulary, REAL hit, REAL uniform) {
    row_losses<true>(logits, bias, ids, distributions, weights, scale, losses, first, rows,
        vocabulary, hit, uniform);
}

// out[t] = weights[t] · dy[k] for the tokens t of sentence k, which begin at offsets[k].
// Block (256), grid (tokens / 256).
extern "C" __global__ void token_scales(const REAL* dy, const REAL* weights,
    const long long* offsets, REAL* out, int sentences, int tokens) {
    const long long token = thread_in_grid();
    if (token >= tokens) return;
    out[token] = weights[token] * dy[find_segment(offsets, 1, 0, sentences, token)];
}
