"""Runs the last steps of a scan, when few sentences are left, in one launch.

Two launches a step cost the host more than a few rows cost the device. So from the step on where
at most `TAIL_ROWS` sentences run, one kernel runs all that is left: a block takes one sentence
through its steps, products included, and no block waits for another. Forward it comes last,
backward first. A cell with operators that have kernels of their own has no tail.

A block reads all weights of the loop in every step, from the second-level cache; beyond
`TAIL_BYTES` that should take longer than two launches. Both limits, `TAIL_ROWS` and `TAIL_BYTES`,
are guesses: no measurement on a card has confirmed them.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.compiler.buffers import ProgramBuffer, Role, array_name
from dynbatch.compiler.cuda.emit import Kernel
from dynbatch.compiler.cuda.kernels import LoopKernels
from dynbatch.compiler.ir import Op, Origin, Value
from dynbatch.compiler.lanes import KernelGroup

TAIL_ROWS = 16
TAIL_BYTES = 1 << 20
THREADS = 512


class Tail:
    """The text of both tail kernels.

    Attributes:
        name:            of the cell's kernels, which theirs begin with.
        arrays, arrays_backward: names of the arrays they take; carried gradients have two each.
        elements:        of all weights in the loop.
    """

    def __init__(self, kernels: LoopKernels) -> None:
        self.kernels = kernels
        self.loop = kernels.loop
        self.arrays: list[str] = []
        self.arrays_backward: list[str] = []
        self._carried: set[int] = set()  # parts of the state whose gradients are
        maps = [item for item in self.loop.items if not isinstance(item, KernelGroup)]
        self.elements = sum([op.output.width * op.inputs[0].width for op in maps])
        self._forward = self._forward_lines()
        self._backward = self._backward_lines()

    def texts(self, prefix: str) -> list[str]:
        """The kernels `PREFIX_tail` and `PREFIX_tail_backward`."""
        forward = [
            *_head(f"{prefix}_tail", self.arrays),
            "    for (int t = first; t < last; ++t) {",
            *_step(),
            "        if (row >= n) break;  // the same for the whole block",
            *[f"        {line}" for line in self._forward],
            "    }",
            "}",
        ]
        choose = []
        for k in sorted(self._carried):
            choose.append(f"REAL* C{k} = (last - 1 - t) & 1 ? C{k}_1 : C{k}_0;")
            choose.append(f"REAL* N{k} = (last - 1 - t) & 1 ? C{k}_0 : C{k}_1;")
        backward = [
            *_head(f"{prefix}_tail_backward", self.arrays_backward),
            "    __shared__ REAL partial[THREADS_OF_TAIL];",
            "    for (int t = last - 1; t >= first; --t) {",
            *_step(),
            "        if (row >= n) continue;  // the same for the whole block",
            *[f"        {line}" for line in [*choose, *self._backward]],
            "    }",
            "}",
        ]
        return ["\n".join(forward), "\n".join(backward)]

    # Forward --------------------------------------------------------------------------------------

    def _forward_lines(self) -> list[str]:
        lines: list[str] = []
        for number, item in enumerate(self.loop.items):
            if isinstance(item, KernelGroup):
                lines += self._group(self.kernels.groups[number].forward, self.arrays)
            else:
                lines += self._map(item)
            lines.append("__syncthreads();")
        return lines

    def _group(self, kernel: Kernel, arrays: list[str]) -> list[str]:
        for role, label in kernel.arrays:
            self._use(arrays, role, label)
        lines: list[str] = []
        for width, body in kernel.lanes:
            loop = f"for (int j = threadIdx.x; j < {width}; j += THREADS_OF_TAIL) {{"
            lines += [loop, *[f"    {line}" for line in body], "}"]
        return lines

    def _map(self, op: Op) -> list[str]:
        loop, number = self.loop, self.loop.maps[id(op)]
        weight = self._use(self.arrays, Role.WEIGHT, number)
        is_inline = id(op.output) in loop.inline_maps
        bias = "nullptr" if is_inline else self._use(self.arrays, Role.BIAS, number)
        call = (
            f"multiply_row({self._address(op.inputs[0], self.arrays)}, {weight}, "
            f"{op.inputs[0].width}, {op.output.width}, {bias}, "
            f"{self._address(op.output, self.arrays)});"
        )
        if loop.skips_zeros(op):
            initial = self._use(self.arrays, Role.INITIAL_STATE, op.inputs[0].base.number)
            return [f"if (p >= 0 || {initial}) {call}"]
        return [call]

    def _address(self, value: Value, arrays: list[str]) -> str:
        """The address of a value's first column in this row; NULL for a state of zeros."""
        base = value.base
        if base.origin is Origin.STATE:
            k = base.number
            buffer, column = self.loop.storage.buffer_of(self.loop.following[k])
            states = self._use(arrays, Role.LEFT_STATES, k)
            before = f"{states} + ((long long)p + row) * {buffer.width}"
            initial = self._use(arrays, Role.INITIAL_STATE, k)
            given = f"{initial} + (long long)row * {base.width} + {value.column}"
            return f"(p >= 0 ? {before} + {column + value.column} : {initial} ? {given} : nullptr)"
        if base.origin is Origin.STREAM:
            stream = self._use(arrays, Role.STREAM, base.number)
            return _row(stream, True, base.width, value.column)
        buffer, column = self.loop.storage.buffer_of(value)
        array = self._use(arrays, buffer.role, buffer.label)
        return _row(array, buffer.packed, buffer.width, column)

    # Backward -------------------------------------------------------------------------------------

    def _backward_lines(self) -> list[str]:
        lines: list[str] = []
        for memory in self.loop.gradients.values():
            buffer = memory.buffer
            if memory.cleared and not buffer.packed:
                name = self._gradient_array(buffer)
                at = _row(name, False, buffer.width, 0)
                lines.append(
                    f"for (int j = threadIdx.x; j < {buffer.width}; j += THREADS_OF_TAIL) "
                    f"({at})[j] = 0;"
                )
        if lines:
            lines.append("__syncthreads();")
        for number in range(len(self.loop.items) - 1, -1, -1):
            item = self.loop.items[number]
            if isinstance(item, KernelGroup):
                kernel = self.kernels.groups[number].backward
                if kernel is None:
                    continue
                lines += self._group(kernel, self.arrays_backward)
                lines.append("__syncthreads();")
            elif id(item) in self.kernels.map_adds:
                lines += self._map_backward(item)
        return lines

    def _map_backward(self, op: Op) -> list[str]:
        loop, (x,) = self.loop, op.inputs
        weight = self._use(self.arrays_backward, Role.WEIGHT, loop.maps[id(op)])
        of_output = loop.gradient_of(op.output).buffer
        dy = _row(self._gradient_array(of_output), of_output.packed, of_output.width, 0)
        buffer = loop.gradient_of(x.base).buffer
        array = self._gradient_array(buffer)
        out = _row(array, buffer.packed, buffer.width, x.column)
        adds = int(self.kernels.map_adds[id(op)])
        call = (
            f"multiply_back({dy}, {weight}, {x.width}, {op.output.width}, {out}, {adds}, partial);"
        )
        if x.base.origin is Origin.STATE:
            initial = self._use(self.arrays_backward, Role.INITIAL_STATE, x.base.number)
            return [f"if (p >= 0 || {initial}) {call}"]
        return [f"if ({array}) {call}"]

    def _gradient_array(self, buffer: ProgramBuffer) -> str:
        return self._use(self.arrays_backward, buffer.role, buffer.label)

    def _use(self, arrays: list[str], role: Role, label: int | str) -> str:
        """The name of an array, which becomes an argument; a carried gradient has two."""
        names = [array_name(role, label)]
        if role in (Role.LEFT_GRADIENT, Role.FOUND_GRADIENT):
            self._carried.add(int(label))
            names = [array_name(Role.LEFT_GRADIENT, f"{label}_{turn}") for turn in range(2)]
        arrays += [name for name in names if name not in arrays]
        return array_name(role, label)


def _head(name: str, arrays: Sequence[str]) -> list[str]:
    pointers = "".join([f"REAL* {array}, " for array in arrays])
    return [
        'extern "C" __global__ void __launch_bounds__(THREADS_OF_TAIL) '
        f"{name}({pointers}const int* steps, int first, int last) {{",
        "    const int row = blockIdx.x;",
    ]


def _step() -> list[str]:
    return ["        const int s = steps[3 * t], n = steps[3 * t + 1], p = steps[3 * t + 2];"]


def _row(array: str, packed: bool, width: int, column: int) -> str:
    row = "((long long)s + row)" if packed else "(long long)row"
    return f"{array} + {row} * {width} + {column}"


PRODUCTS = """
// The products of a tail: one row, by the whole block.
constexpr int THREADS_OF_TAIL = @THREADS@, OUTPUTS_OF_WARP = 4;

// out[o] = Σ_k x[k] W[o, k] + bias[o], for W (O, K); zeros for x where it is NULL. A warp makes
// OUTPUTS_OF_WARP outputs, its lanes along k.
__device__ __forceinline__ void multiply_row(const REAL* x, const REAL* weight, int K, int O,
                                             const REAL* bias, REAL* out) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, inner = x ? K : 0;
    for (int o = warp * OUTPUTS_OF_WARP; o < O; o += THREADS_OF_TAIL / WARP * OUTPUTS_OF_WARP) {
        REAL sum[OUTPUTS_OF_WARP] = {};
#pragma unroll 4  // a block has a multiprocessor to itself: many loads must be under way
        for (int k = lane; k < inner; k += WARP) {
            const REAL factor = x[k];
#pragma unroll
            for (int i = 0; i < OUTPUTS_OF_WARP; ++i)
                sum[i] += factor * weight[(long long)min(o + i, O - 1) * K + k];
        }
#pragma unroll
        for (int i = 0; i < OUTPUTS_OF_WARP; ++i) {
            const REAL total = warp_reduce<Add>(sum[i]);
            if (lane == 0 && o + i < O) out[o + i] = bias ? total + bias[o + i] : total;
        }
    }
}

// out[k] (+)= Σ_o dy[o] W[o, k]. Threads go along k; where K leaves room for several teams, each
// takes a part of the o, and their sums are added in order. `partial` has a place for each thread.
// At the end the block has met.
__device__ __forceinline__ void multiply_back(const REAL* dy, const REAL* weight, int K, int O,
                                              REAL* out, int add, REAL* partial) {
    const int wide = K < THREADS_OF_TAIL ? K : THREADS_OF_TAIL, teams = THREADS_OF_TAIL / wide;
    const int team = threadIdx.x / wide, column = threadIdx.x % wide;
    for (int first = 0; first < K; first += wide) {
        const int k = first + column;
        REAL sum = 0;
        if (team < teams && k < K)
            for (int o = team; o < O; o += teams) sum += dy[o] * weight[(long long)o * K + k];
        partial[threadIdx.x] = sum;
        __syncthreads();
        if (team == 0 && k < K) {
            for (int other = 1; other < teams; ++other) sum += partial[other * wide + column];
            out[k] = add ? out[k] + sum : sum;
        }
        __syncthreads();  // `out` is read, and `partial` written again
    }
}
""".replace("@THREADS@", str(THREADS))
