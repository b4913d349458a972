"""Kernels: arrays in, arrays out; in NumPy here, in CUDA in `kernels.cuda`.

A kernel overwrites `out`, unless its docstring says that it adds. The indices of its formula give
the shapes:

    x[n], out[n], …   (N, D) packed rows; x_i, out_i: (N,) elements
    y[k], dy[k], …    (K, D) a row for each segment, or (K,) a number
    offsets           (K + 1,) non-decreasing, from 0 to N: segment k is the rows, or elements, from
                      offsets[k] to before offsets[k + 1]; it may be empty
    y, dy             value and gradient of the output

Offsets, ids, weights and numbers for segments are arrays of the host for both versions.
"""
