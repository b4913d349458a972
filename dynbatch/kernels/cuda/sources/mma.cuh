// Products of a warp on tensor cores, in float32 with factors rounded to TF32 or bfloat16, and copies
// from global to shared memory that go on beside other work. Not run on a card.
//
// Both multiply 16 x 16 by 16 x 8 numbers. Of these, lane 4 g + t has
//
//     left   columns 8 h + 2 t and 8 h + 2 t + 1 of rows g and g + 8, for h = 0, 1
//     right  rows 8 h + 2 t and 8 h + 2 t + 1 of column g
//     sums   columns 2 t and 2 t + 1 of rows g and g + 8
//
// so that sums are left factors of the next product as they are. The order of what is summed over is
// free where both factors have the same: TF32 takes two products of 8, in which column 2 t stands at
// place t and column 2 t + 1 at place t + 4.
//
// Source: PTX ISA, "Matrix fragments for mma.m16n8k8" and "… mma.m16n8k16".
//
// Below sm_80 there is neither: nobody launches these kernels there. The simulator brings functions
// of its own.

#ifdef __CUDA_ARCH__
#if __CUDA_ARCH__ >= 800

// x to the nearest number of TF32, of two the one further from 0.
__device__ __forceinline__ unsigned tf32_bits(float x) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

// Two numbers to the nearest of bfloat16, of two the even one; `low` in the lower half.
__device__ __forceinline__ unsigned bfloat16_bits(float low, float high) {
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

// c += a b: 16 x 8 by 8 x 8, and 16 x 16 by 16 x 8. All lanes of the warp must call.
__device__ __forceinline__ void mma_tf32(
    float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_bfloat16(
    float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four floats to shared memory, both places at multiples of 16 bytes. They are there after this
// thread's next `wait_for_copies`, for other threads after a barrier behind that.
__device__ __forceinline__ void copy_later(float* to, const float* from) {
    const unsigned place = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
}

__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

#else

__device__ __forceinline__ unsigned tf32_bits(float) { return 0; }
__device__ __forceinline__ unsigned bfloat16_bits(float, float) { return 0; }
__device__ __forceinline__ void mma_tf32(
    float (&)[4], unsigned, unsigned, unsigned, unsigned, unsigned, unsigned) {
    __trap();
}
__device__ __forceinline__ void mma_bfloat16(
    float (&)[4], unsigned, unsigned, unsigned, unsigned, unsigned, unsigned) {
    __trap();
}
__device__ __forceinline__ void copy_later(float*, const float*) { __trap(); }
__device__ __forceinline__ void wait_for_copies() {}

#endif
#endif

enum class Precision { TF32, BFLOAT16 };

// What a lane has of 16 x 16 left factors, rounded.
template <Precision P>
struct Left {
    unsigned bits[P == Precision::TF32 ? 8 : 4];
};

// From what it has of columns 0 … 7 and of columns 8 … 15: of row g, then of row g + 8.
template <Precision P>
__device__ __forceinline__ Left<P> left_factors(const float (&low)[4], const float (&high)[4]) {
    if constexpr (P == Precision::TF32)
        return {tf32_bits(low[0]), tf32_bits(low[2]), tf32_bits(low[1]), tf32_bits(low[3]),
            tf32_bits(high[0]), tf32_bits(high[2]), tf32_bits(high[1]), tf32_bits(high[3])};
    else
        return {bfloat16_bits(low[0], low[1]), bfloat16_bits(low[2], low[3]),
            bfloat16_bits(high[0], high[1]), bfloat16_bits(high[2], high[3])};
}

// sums += left right; the lane has a and b of rows 0 … 7, c and d of rows 8 … 15 of its column.
template <Precision P>
__device__ __forceinline__ void multiply_add(
    float (&sums)[4], const Left<P>& left, float a, float b, float c, float d) {
    const auto& bits = left.bits;
    if constexpr (P == Precision::TF32) {
        mma_tf32(sums, bits[0], bits[1], bits[2], bits[3], tf32_bits(a), tf32_bits(b));
        mma_tf32(sums, bits[4], bits[5], bits[6], bits[7], tf32_bits(c), tf32_bits(d));
    } else {
        const unsigned low = bfloat16_bits(a, b), high = bfloat16_bits(c, d);
        mma_bfloat16(sums, bits[0], bits[1], bits[2], bits[3], low, high);
    }
}
