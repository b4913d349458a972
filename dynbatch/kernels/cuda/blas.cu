// Products that cuBLAS does not do: of nothing, and of matrices that differ in shape.

// Planes of zeros: rows of `width` that are `ld` elements apart, in planes `step` elements apart.
// Block (256); grid (width / 256, rows, planes), the last two at most 65535.
extern "C" __global__ void zero_planes(REAL* out, int rows, int width, long long ld, long long step,
                                       int planes) {
    const long long column = thread_in_grid();
    if (column >= width) return;
    for (int plane = blockIdx.z; plane < planes; plane += gridDim.z)
        for (int row = blockIdx.y; row < rows; row += gridDim.y)
            out[plane * step + row * ld + column] = (REAL)0;
}
