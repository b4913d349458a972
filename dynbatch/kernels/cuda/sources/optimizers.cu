// Steps of the optimizers, for all parameters of a type in one launch: the CUDA versions of
// kernels/optimizers.py, where the steps are written down and the numbers named.
//
// A table row for each parameter, `numbers` of its step beside it. Places are in elements from
// `base`, the first parameter's value:
//
//     first  value  gradient  slot  slot  slot  width  first_row  num_rows  every_row
//
// `first` counts the elements of the parameters before. A gradient that is dense has width 0. One
// of some rows has them in `rows` from first_row on, increasing; then the elements gone through are
// those of the rows given, or, if every_row, all of the parameter's: the gradient of the other rows
// is 0.
//
// All kernels: block 256, grid total / TILE; they go through all elements of all parameters, TILE
// to a block, as in move.cu. `norm` is NULL, or a number that must be finite: nothing is done if
// not.

enum { FIRST, VALUE, GRADIENT, SLOTS, WIDTH = 6, FIRST_ROW, NUM_ROWS, EVERY_ROW, ENTRY };

// One element of a parameter and of its slots.
struct Weight {
    REAL gradient;
    REAL& value;
    REAL* slots[3];
    const REAL* numbers;
};

template <class Step>
__device__ __forceinline__ void over_parameters(REAL* base, const long long* entries,
    const int* rows, const REAL* numbers, int num_numbers, const double* norm, int count,
    long long total, Step step) {
    if (norm && !(*norm < infinity())) return;
    const long long begin = (long long)blockIdx.x * TILE, end = min(begin + TILE, total);
    const int low = find_segment(entries, ENTRY, 0, count, begin);
    const int high = find_segment(entries, ENTRY, low, count, end - 1) + 1;
    for (long long e = begin + threadIdx.x; e < end; e += blockDim.x) {
        const int k = find_segment(entries, ENTRY, low, high, e);
        const long long* p = entries + (long long)k * ENTRY;
        const REAL* gradients = base + p[GRADIENT];
        const unsigned i = (unsigned)(e - p[FIRST]), width = (unsigned)p[WIDTH];
        long long at = i;
        REAL gradient = 0;
        if (width == 0) {
            gradient = gradients[i];
        } else {
            const unsigned row = i / width, column = i % width;
            const int* given = rows + p[FIRST_ROW];
            if (!p[EVERY_ROW]) {
                gradient = gradients[i];
                at = (long long)given[row] * width + column;
            } else if (p[NUM_ROWS]) {
                const int n = find_segment(given, 1, 0, (int)p[NUM_ROWS], row);
                if (given[n] == (int)row) gradient = gradients[(long long)n * width + column];
            }
        }
        step(Weight{gradient, base[p[VALUE] + at],
            {base + p[SLOTS] + at, base + p[SLOTS + 1] + at, base + p[SLOTS + 2] + at},
            numbers + (long long)k * num_numbers});
    }
}

extern "C" __global__ void sgd(REAL* base, const long long* entries, const int* rows,
    const REAL* numbers, const double* norm, int count, long long total) {
    over_parameters(base, entries, rows, numbers, 5, norm, count, total, [](const Weight& p) {
        const REAL lr = p.numbers[0], momentum = p.numbers[1], share = p.numbers[2];
        const REAL decay = p.numbers[3], nesterov = p.numbers[4];
        REAL direction = p.gradient;
        if (decay != 0) direction += decay * p.value;
        if (momentum != 0) {
            const REAL average = momentum * *p.slots[0] + share * direction;
            *p.slots[0] = average;
            direction = nesterov != 0 ? direction + momentum * average : average;
        }
        p.value -= lr * direction;
    });
}

extern "C" __global__ void adagrad(REAL* base, const long long* entries, const int* rows,
    const REAL* numbers, const double* norm, int count, long long total) {
    over_parameters(base, entries, rows, numbers, 3, norm, count, total, [](const Weight& p) {
        const REAL lr = p.numbers[0], decay = p.numbers[1], eps = p.numbers[2];
        REAL direction = p.gradient;
        if (decay != 0) direction += decay * p.value;
        const REAL square_sum = *p.slots[0] + direction * direction;
        *p.slots[0] = square_sum;
        p.value -= lr * (direction / (sqrt(square_sum) + eps));
    });
}

extern "C" __global__ void rmsprop(REAL* base, const long long* entries, const int* rows,
    const REAL* numbers, const double* norm, int count, long long total) {
    over_parameters(base, entries, rows, numbers, 7, norm, count, total, [](const Weight& p) {
        const REAL lr = p.numbers[0], alpha = p.numbers[1], rest = p.numbers[2];
        const REAL eps = p.numbers[3], decay = p.numbers[4], momentum = p.numbers[5];
        const bool centered = p.numbers[6] != 0;
        REAL direction = p.gradient;
        if (decay != 0) direction += decay * p.value;
        REAL square = alpha * *p.slots[0] + rest * (direction * direction);
        *p.slots[0] = square;
        if (centered) {
            const REAL average = alpha * *p.slots[1] + rest * direction;
            *p.slots[1] = average;
            square -= average * average;
        }
        REAL step = direction / (sqrt(square) + eps);
        if (momentum != 0) {
            REAL& average = centered ? *p.slots[2] : *p.slots[1];
            average = step = momentum * average + step;
        }
        p.value -= lr * step;
    });
}

extern "C" __global__ void adam(REAL* base, const long long* entries, const int* rows,
    const REAL* numbers, const double* norm, int count, long long total) {
    over_parameters(base, entries, rows, numbers, 7, norm, count, total, [](const Weight& p) {
        const REAL step_size = p.numbers[0], beta1 = p.numbers[1], beta2 = p.numbers[2];
        const REAL eps = p.numbers[3], decay = p.numbers[4], shrink = p.numbers[5];
        REAL gradient = p.gradient, value = p.value;
        if (decay != 0) gradient += decay * value;
        if (shrink != 1) value *= shrink;
        const REAL gradient_sum = beta1 * *p.slots[0] + gradient;
        REAL square_sum = beta2 * *p.slots[1] + gradient * gradient;
        *p.slots[0] = gradient_sum;
        *p.slots[1] = square_sum;
        if (p.numbers[6] != 0) *p.slots[2] = square_sum = Max::combine(square_sum, *p.slots[2]);
        p.value = value - step_size * (gradient_sum / (sqrt(square_sum) + eps));
    });
}

extern "C" __global__ void adadelta(REAL* base, const long long* entries, const int* rows,
    const REAL* numbers, const double* norm, int count, long long total) {
    over_parameters(base, entries, rows, numbers, 5, norm, count, total, [](const Weight& p) {
        const REAL lr = p.numbers[0], rho = p.numbers[1], rest = p.numbers[2];
        const REAL eps = p.numbers[3], decay = p.numbers[4], steps = *p.slots[1];
        REAL direction = p.gradient;
        if (decay != 0) direction += decay * p.value;
        const REAL square = rho * *p.slots[0] + rest * (direction * direction);
        const REAL step = direction / sqrt(square + eps) * sqrt(steps + eps);
        *p.slots[0] = square;
        *p.slots[1] = rho * steps + rest * (step * step);
        p.value -= lr * step;
    });
}

extern "C" __global__ void exponentiated(REAL* base, const long long* entries, const int* rows,
    const REAL* numbers, const double* norm, int count, long long total) {
    over_parameters(base, entries, rows, numbers, 2, norm, count, total, [](const Weight& p) {
        const REAL lr = p.numbers[0], momentum = p.numbers[1];
        REAL direction = p.gradient;
        if (momentum != 0) *p.slots[0] = direction = momentum * *p.slots[0] + direction;
        p.value *= exp(-lr * direction);
    });
}
