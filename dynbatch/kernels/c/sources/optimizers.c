// Steps of the optimizers, each in one pass: the formulas are in kernels/optimizers.py, whose
// numbers each reads in the same order.
#include "functions.h"

// The step of elements start, …, start + n - 1; `gradient` is that of the first.
typedef void step(ptrdiff_t start, ptrdiff_t n, const REAL* gradient, REAL* value,
    REAL* const* slots, const double* numbers);

// g' = g + decay x; without decay x may be infinite.
INLINE vector decayed(vector gradient, vector x, REAL decay) {
    return decay != 0 ? gradient + decay * x : gradient;
}

static void sgd(ptrdiff_t start, ptrdiff_t n, const REAL* gradient, REAL* value, REAL* const* slots,
    const double* numbers) {
    REAL lr = (REAL)numbers[0], momentum = (REAL)numbers[1], share = (REAL)numbers[2];
    REAL decay = (REAL)numbers[3], nesterov = (REAL)numbers[4];
    EACH_VECTOR(i, part, n) {
        vector x = get(value + start + i, part), g = decayed(get(gradient + i, part), x, decay);
        if (momentum != 0) {
            vector average = momentum * get(slots[0] + start + i, part) + share * g;
            put(slots[0] + start + i, average, part);
            g = nesterov != 0 ? g + momentum * average : average;
        }
        put(value + start + i, x - lr * g, part);
    }
}

static void adagrad(ptrdiff_t start, ptrdiff_t n, const REAL* gradient, REAL* value,
    REAL* const* slots, const double* numbers) {
    REAL lr = (REAL)numbers[0], decay = (REAL)numbers[1], eps = (REAL)numbers[2];
    EACH_VECTOR(i, part, n) {
        vector x = get(value + start + i, part), g = decayed(get(gradient + i, part), x, decay);
        vector square_sum = get(slots[0] + start + i, part) + g * g;
        put(slots[0] + start + i, square_sum, part);
        put(value + start + i, x - lr * (g / (sqrt_of(square_sum) + eps)), part);
    }
}

static void rmsprop(ptrdiff_t start, ptrdiff_t n, const REAL* gradient, REAL* value,
    REAL* const* slots, const double* numbers) {
    REAL lr = (REAL)numbers[0], alpha = (REAL)numbers[1], rest = (REAL)numbers[2];
    REAL eps = (REAL)numbers[3], decay = (REAL)numbers[4], momentum = (REAL)numbers[5];
    int centered = numbers[6] != 0;
    REAL* buffer = slots[1 + centered];
    EACH_VECTOR(i, part, n) {
        vector x = get(value + start + i, part), g = decayed(get(gradient + i, part), x, decay);
        vector square = alpha * get(slots[0] + start + i, part) + rest * (g * g);
        put(slots[0] + start + i, square, part);
        if (centered) {
            vector average = alpha * get(slots[1] + start + i, part) + rest * g;
            put(slots[1] + start + i, average, part);
            square -= average * average;
        }
        vector d = g / (sqrt_of(square) + eps);
        if (momentum != 0) {
            d += momentum * get(buffer + start + i, part);
            put(buffer + start + i, d, part);
        }
        put(value + start + i, x - lr * d, part);
    }
}

static void adam(ptrdiff_t start, ptrdiff_t n, const REAL* gradient, REAL* value,
    REAL* const* slots, const double* numbers) {
    REAL step_size = (REAL)numbers[0], beta1 = (REAL)numbers[1], beta2 = (REAL)numbers[2];
    REAL eps = (REAL)numbers[3], decay = (REAL)numbers[4], shrink = (REAL)numbers[5];
    int amsgrad = numbers[6] != 0;
    EACH_VECTOR(i, part, n) {
        vector x = get(value + start + i, part), g = decayed(get(gradient + i, part), x, decay);
        vector gradient_sum = beta1 * get(slots[0] + start + i, part) + g;
        vector square_sum = beta2 * get(slots[1] + start + i, part) + g * g;
        put(slots[0] + start + i, gradient_sum, part);
        put(slots[1] + start + i, square_sum, part);
        if (amsgrad) {
            square_sum = maximum_of(get(slots[2] + start + i, part), square_sum);
            put(slots[2] + start + i, square_sum, part);
        }
        vector moved = step_size * (gradient_sum / (sqrt_of(square_sum) + eps));
        put(value + start + i, shrink * x - moved, part);
    }
}

static void adadelta(ptrdiff_t start, ptrdiff_t n, const REAL* gradient, REAL* value,
    REAL* const* slots, const double* numbers) {
    REAL lr = (REAL)numbers[0], rho = (REAL)numbers[1], rest = (REAL)numbers[2];
    REAL eps = (REAL)numbers[3], decay = (REAL)numbers[4];
    EACH_VECTOR(i, part, n) {
        vector x = get(value + start + i, part), g = decayed(get(gradient + i, part), x, decay);
        vector square = rho * get(slots[0] + start + i, part) + rest * (g * g);
        vector steps = get(slots[1] + start + i, part);
        vector d = g / sqrt_of(square + eps) * sqrt_of(steps + eps);
        put(slots[0] + start + i, square, part);
        put(slots[1] + start + i, rho * steps + rest * (d * d), part);
        put(value + start + i, x - lr * d, part);
    }
}

static void exponentiated(ptrdiff_t start, ptrdiff_t n, const REAL* gradient, REAL* value,
    REAL* const* slots, const double* numbers) {
    REAL lr = (REAL)numbers[0], momentum = (REAL)numbers[1];
    EACH_VECTOR(i, part, n) {
        vector d = get(gradient + i, part);
        if (momentum != 0) {
            d += momentum * get(slots[0] + start + i, part);
            put(slots[0] + start + i, d, part);
        }
        put(value + start + i, get(value + start + i, part) * exp_of(-lr * d), part);
    }
}

static step* const STEPS[] = {sgd, adagrad, rmsprop, adam, adadelta, exponentiated};

// The gradient of rows that have none: they go through the same code, and so get the same bits.
#define ZEROS 1024
static const REAL zeros[ZEROS];

// A step of one parameter, of its units first, …, last - 1: elements of a dense gradient, where
// `rows` is NULL; with `every_row` rows of the parameter, else those of a sparse gradient, which
// increase.
EXPORT void update(int number, const double* numbers, ptrdiff_t first, ptrdiff_t last,
    const REAL* gradient, const int64_t* rows, ptrdiff_t num_rows, ptrdiff_t width, int every_row,
    REAL* value, REAL* slot0, REAL* slot1, REAL* slot2) {
    step* apply = STEPS[number];
    REAL* const slots[] = {slot0, slot1, slot2};
    if (!rows) {
        apply(first, last - first, gradient + first, value, slots, numbers);
    } else if (!every_row) {
        for (ptrdiff_t n = first; n < last; n++)
            apply(rows[n] * width, width, gradient + n * width, value, slots, numbers);
    } else {
        ptrdiff_t n = 0, row = first;
        while (n < num_rows && rows[n] < first) n++;
        while (row < last) {
            ptrdiff_t given = n < num_rows ? least(rows[n], last) : last, end = given * width;
            for (ptrdiff_t i = row * width; i < end; i += ZEROS)
                apply(i, least(ZEROS, end - i), zeros, value, slots, numbers);
            if (given < last) apply(end, width, gradient + n++ * width, value, slots, numbers);
            row = given + 1;
        }
    }
}
