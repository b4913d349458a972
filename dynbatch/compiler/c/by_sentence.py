"""Prints the passes of a loop with matrices, in which all steps of a sentence follow one another.

A step's matrices stay in the cache then, which those of all sentences exceed; and where no operator
brings heads together, all steps of a head run before the next one's (see `compiler.heads`). Streams
are read, outputs and gradients of streams written, where they lie, in the order of tokens.

    forward(count, steps, given, ahead, part, at, product)      and backward

run `count` steps; `steps` is the `table` of them, and of `at` there are two numbers for each array
of `slots`, as in `c.passes`; the rest is not read. `again` runs both passes of each stretch of
steps, the last one first, from states that forward has left in S. What a step makes has row r of
its arrays: rows of the parts of one head, with which all heads and sentences take turns, or of
whole values if they are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent

import numpy as np

from dynbatch.backend import Array
from dynbatch.compiler.arrays import Step
from dynbatch.compiler.buffers import ProgramBuffer, Role, Storage, array_name
from dynbatch.compiler.c.loop_text import ORDER, OUTPUT_GRADIENTS, OUTPUTS, LoopText, rows_of_stream
from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.heads import ONE_HEAD, Heads, heads_of
from dynbatch.compiler.ir import Op, Origin, Value
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.places import Pointer, Pointers

COLUMNS = 6
"""Of a table: row o of a token in its order, and s in the loop's; the sentence; row r of what the
step makes and q of what the step before has, or -1; and the row of S that has the state which the
step finds, or -1."""


def table(
    order: Array, steps: Sequence[Step], chunk: int = 0, rows: int = 0, first: int = 0,
    again: bool = False,
) -> Array:  # fmt: skip
    """The table of steps in prefix layout, sentence after sentence.

    Args:
        order: (R,) rows of tokens.
        chunk: steps after which a state is in S; 0 where none is.
        rows:  that steps take turns with; 0 where each has its own, s.
        first: row of S for the first sentence.
        again: whether steps begin from S.
    """
    counts = np.array(steps, np.int64).reshape(-1, 4)[:, 2]
    step = np.repeat(np.arange(len(counts)), counts)
    s = np.arange(step.size)
    sentence = s - np.repeat(np.cumsum(counts) - counts, counts)
    by_sentence = np.argsort(sentence, kind="stable")
    s, step, sentence = s[by_sentence], step[by_sentence], sentence[by_sentence]
    r = step % rows if rows else s
    begins = step % chunk == 0 if again else step == 0
    q = np.where(begins, -1, np.concatenate([r[:1], r[:-1]]))
    kept = np.full(step.size, -1)
    if chunk:
        is_kept = (step > 0) & (step % chunk == 0)
        kept[is_kept] = first + np.arange(int(is_kept.sum()))
    return np.ascontiguousarray(np.stack([order[s], s, sentence, r, q, kept], axis=1), np.int64)


# Calls what runs each stretch: steps in which all but the first find what the one before has made.
RUNS = f"""\
typedef void run_function(ptrdiff_t count, const int64_t* steps, ptrdiff_t head, int ends,
    const int64_t* at);

static int ends_sentence(ptrdiff_t count, const int64_t* steps, ptrdiff_t end) {{
    return end == count || steps[{COLUMNS} * end + 2] != steps[{COLUMNS} * end - {COLUMNS - 2}];
}}

// Runs each stretch by `run`, then by `then`; `ends` says that the last of a sentence ends it.
static void run_stretches(ptrdiff_t count, const int64_t* steps, run_function* run, int ends,
    const int64_t* at, run_function* then, const int64_t* at_then) {{
    for (ptrdiff_t end = count, start; end > 0; end = start) {{
        start = end - 1;
        while (steps[{COLUMNS} * start + 4] >= 0) start--;
        const int64_t* first = steps + {COLUMNS} * start;
        const int is_last = ends_sentence(count, steps, end);
        for (ptrdiff_t head = 0; head < HEADS; head++) {{
            run(end - start, first, head, ends && is_last, at);
            if (then) then(end - start, first, head, is_last, at_then);
        }}
    }}
}}

EXPORT void forward(ptrdiff_t count, const int64_t* steps, int given, int ahead, int part,
    const int64_t* at, const void* product) {{
    run_stretches(count, steps, run_forward, 1, at, NULL, NULL);
}}

EXPORT void backward(ptrdiff_t count, const int64_t* steps, int given, int ahead, int part,
    const int64_t* at, const void* product) {{
    run_stretches(count, steps, run_backward, 1, at, NULL, NULL);
}}

EXPORT void again(ptrdiff_t count, const int64_t* steps, const int64_t* at,
    const int64_t* at_back) {{
    run_stretches(count, steps, run_again, 0, at, run_backward, at_back);
}}
"""


class SentencePlaces(Pointers):
    """The places of a step's values: of the part of a head, for values that heads cut."""

    def __init__(self, storages: Sequence[Storage]) -> None:
        super().__init__(*storages)
        self.heads = ONE_HEAD

    def of(self, value: Value) -> Pointer:
        base, column, width = value.base, value.column, value.width
        if base.origin is Origin.STATE:
            return Pointer(f"h{base.number}", column, width, f"h{base.number} + {column}", "0")
        buffer, first = self.buffer_of(base)
        count = self.heads.count
        begin = f"{first + column}"
        if count > 1 and self.heads.cuts(base):
            begin += f" + head * {base.width // count}"
        part = f"{first // count + column}"
        if buffer.role is Role.STREAM:
            name = rows_of_stream(base.number)
            pointer = f"{name} + o * {name}_step + {begin}"
        elif buffer.role is Role.LEFT_GRADIENT:
            pointer = f"{buffer.name} + first * {buffer.name}_step + {begin}"
        elif not buffer.packed or buffer.role is Role.EXPORT_GRADIENT:
            pointer = f"{buffer.name} + {part}"
        elif buffer.role is Role.STREAM_GRADIENT:
            pointer = f"{buffer.name} + o * {buffer.name}_step + {begin}"
        elif self.is_in_turn(buffer):
            pointer = (
                f"{buffer.name} + r * {buffer.name}_step + {self.of_turn(buffer, begin, part)}"
            )
        else:
            pointer = f"{buffer.name} + s * {buffer.width} + {begin}"
        return Pointer(buffer.name, first + column, width, pointer, "0")

    def is_in_turn(self, buffer: ProgramBuffer) -> bool:
        """Whether a packed array has rows of what a step makes."""
        is_ahead = any([each.is_ahead(buffer) for each in self._storages])
        return buffer.role is Role.PACKED and not is_ahead

    def of_turn(self, buffer: ProgramBuffer, begin: str, part: str) -> str:
        """The column in such an array, whose rows are of whole values or of a head's parts."""
        return begin if begin == part else f"({buffer.name}_whole ? {begin} : {part})"


class SentenceTexts:
    """The functions of both passes.

    Attributes:
        passes: both.
        heads:  of the loop.
        around: the source before and behind their own.
    """

    def __init__(self, backward: BackwardProgram, storage: Storage, gradients: Storage) -> None:
        forward = SentenceForward(backward, storage)
        self.passes = forward, SentenceBackward(backward, storage, gradients)
        again = SentenceForward(backward, storage, again=True)
        items = [each.items() for each in (*self.passes, again)]
        self.heads = heads_of(backward, [storage, gradients], items)
        for each in (*self.passes, again):
            each.print_for(self.heads)
        self.around = f"#define HEADS {self.heads.count}", again.text, RUNS


class SentenceText(LoopText):
    """The function of a pass.

    Attributes:
        text: its source.
    """

    places: SentencePlaces
    text: str

    def __init__(
        self, name: str, program: LoopProgram, storages: Sequence[Storage], ops: Sequence[Op],
        kept: Sequence[Value],
    ) -> None:  # fmt: skip
        super().__init__(name, program, storages, ops, kept)
        names = [f"S{k}" for k in program.changed_states()]
        self.slots = [x for x in self.slots if x[0] != "X" and x != ORDER] + names

    def _places(self, storages: Sequence[Storage]) -> Pointers:
        return SentencePlaces(storages)

    def print_for(self, heads: Heads) -> None:
        """Print it, for a head after the other."""
        self.places.heads = self._heads = heads
        parts = self._parts(self.items())
        body = [*self._step(), *self._first(), *parts, *self._last()]
        lines = [
            f"static void run_{self._name}(ptrdiff_t count, const int64_t* steps, ptrdiff_t head,",
            "    int ends, const int64_t* at) {",
            *[f"    {line}" for line in self._arrays()],
            f"    {self._each} {{",
            indent("\n".join(body), " " * 8),
            "    }",
            "    (void)head, (void)ends;",
            "}",
        ]
        self.text = "\n".join([*self._lanes, *lines, ""])

    _each = "for (ptrdiff_t t = 0; t < count; t++)"

    def _first(self) -> list[str]:
        return []

    def _last(self) -> list[str]:
        return []

    def _arrays(self) -> list[str]:
        lines = super()._arrays()
        for buffer in self._in_turn():
            name = buffer.name
            lines.append(f"const int {name}_whole = {name}_step == {buffer.width};")
            lines.append(f"(void){name}_whole;")
        return lines

    def _in_turn(self) -> list[ProgramBuffer]:
        buffers = [b for each in self._storages for b in each.packed]
        return [b for b in buffers if self.places.is_in_turn(b)]

    def _step(self) -> list[str]:
        lines = [
            f"const int64_t* step = steps + {COLUMNS} * t;",
            "const ptrdiff_t o = step[0], s = step[1], first = step[2], r = step[3], q = step[4];",
            "const ptrdiff_t kept = step[5], n = 1;",
            "(void)o, (void)s, (void)first, (void)r, (void)q, (void)kept;",
        ]
        for k, columns in enumerate(self._following):
            begin, part = self._part_of_state(k)
            pointer = f"I{k} + first * I{k}_step + {begin}"
            if columns is not None:
                turn = self.places.of_turn(columns.buffer, f"{columns.column} + {begin}", part)
                left = f"{columns.buffer.name} + q * {columns.buffer.name}_step + {turn}"
                kept = f"S{k} + kept * S{k}_step + {begin}"
                pointer = f"q >= 0 ? {left} : kept >= 0 ? {kept} : {pointer}"
            lines.append(f"const REAL* const h{k} = {pointer};")
            lines.append(f"(void)h{k};")
        return lines

    def _part_of_state(self, number: int) -> tuple[str, str]:
        """The first column of a head in a row of a state, and in one of parts that are left."""
        width, count = self._program.states[number].width, self._heads.count
        columns = self._following[number]
        part = 0 if columns is None else columns.column // count
        return (f"head * {width // count}" if count > 1 else "0"), str(part)

    def _copies_of_state(self, condition: str, to: str, source: str) -> list[str]:
        """Lines that copy the head's part of each state that steps change."""
        return [
            f"if ({condition.format(k=k)}) memcpy({to.format(k=k)} + {self._part_of_state(k)[0]}, "
            f"{source.format(k=k)}, {state.width // self._heads.count} * sizeof(REAL));"
            for k, state in self._program.changed_states().items()
        ]


class SentenceForward(SentenceText):
    """Forward, which leaves states in S, and the last one in I, where these are given.

    Args:
        again: whether it makes nothing but what backward reads, and the state.
    """

    def __init__(self, backward: BackwardProgram, storage: Storage, again: bool = False) -> None:
        program = backward.forward
        self._again = again
        ops = _read_back(backward) if again else program.ops
        name = "again" if again else "forward"
        super().__init__(name, program, [storage], ops, storage.kept)
        self.slots += [OUTPUTS]

    def _first(self) -> list[str]:
        is_wanted, kept = "q >= 0 && kept >= 0 && S{k}", "S{k} + kept * S{k}_step"
        return [] if self._again else self._copies_of_state(is_wanted, kept, "h{k}")

    def _last(self) -> list[str]:
        """Outputs in the order of tokens, and the last state."""
        if self._again:
            return []
        lines, count = [], self._heads.count
        for value, column in self._program.exports_at():
            x, width = self.places.of(value), value.width // count
            of_head = f" + head * {width}" if count > 1 else ""
            source = x.pointer + ("" if self._heads.cuts(value.base) else of_head)
            target = f"ys + o * ys_step + {column}{of_head}"
            lines.append(f"if (ys) memcpy({target}, {source}, {width} * sizeof(REAL));")
        for k in self._program.changed_states():
            left = self.places.of(self._program.following[k]).pointer
            lines.append(f"const REAL* const left{k} = {left};")
        condition = "ends && t + 1 == count && I{k}_step"
        return lines + self._copies_of_state(condition, "I{k} + first * I{k}_step", "left{k}")


def _read_back(backward: BackwardProgram) -> list[Op]:
    """The operators of forward that make what backward reads, and the next state."""
    needed = {id(x.base) for x in (*backward.saved(), *backward.forward.following)}
    ops: list[Op] = []
    for op in reversed(backward.forward.ops):
        if id(op.output) in needed:
            needed |= {id(x.base) for x in op.inputs}
            ops.insert(0, op)
    return ops


class SentenceBackward(SentenceText):
    """Backward: gradients of the state are carried in C, or begin from zeros there."""

    _each = "for (ptrdiff_t t = count - 1; t >= 0; t--)"

    def __init__(self, backward: BackwardProgram, storage: Storage, gradients: Storage) -> None:
        program = backward.forward
        storages = [gradients, storage]
        super().__init__("backward", program, storages, backward.ops, backward.results())
        self.slots += [array_name(Role.LEFT_GRADIENT, k) for k in range(len(program.states))]
        self.slots += ["dY", *[f"dX{k}" for k in backward.of_streams], OUTPUT_GRADIENTS]

    def _first(self) -> list[str]:
        lines, count = [], self._heads.count
        for k, state in enumerate(self._program.states):
            begin, width = self._part_of_state(k)[0], state.width // count
            is_first = f"ends && t + 1 == count && !C{k}_step"
            lines.append(f"if ({is_first}) memset(C{k} + {begin}, 0, {width} * sizeof(REAL));")
        for value, column in self._program.exports_at():
            width = value.width // count
            source = f"dys + o * dys_step + {column}" + (f" + head * {width}" if count > 1 else "")
            lines.append(f"memcpy(dY + {column // count}, {source}, {width} * sizeof(REAL));")
        return lines
