"""`MeasuredForms`: the padded and the unpadded form of a model on the same sentences, measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from statistics import fmean, median

from dynbatch.backend import Device
from dynbatch.batcher.planning.memory_use import MemoryUse
from dynbatch.errors import DynbatchError, MemoryLimitError, OutOfMemory, problem_of
from dynbatch.kernels.runtime.precision import FULL, SHORT, of_values
from dynbatch.models.module import Module
from dynbatch.named_parameters import Parameters, graph_dtype
from dynbatch.nodes.losses.cross_entropy import stored_logits
from dynbatch.optim import Optimizer
from dynbatch.padding.batches import (
    Batch,
    Sample,
    batches_by_tokens,
    bucketed_batches,
    cells,
    random_batches,
    random_batches_by_tokens,
    sample,
    tokens,
    tokens_of,
)
from dynbatch.padding.forms import (
    CAUSES,
    FORMS,
    PADDED_BY_TOKENS,
    PADDED_RANDOM,
    UNPADDED_BY_TOKENS,
    UNPADDED_RANDOM,
    VALUES,
    Cause,
    Form,
    is_padded,
)
from dynbatch.padding.limited import WithinLimit
from dynbatch.padding.measure import Examples, Step, Stepper
from dynbatch.padding.padded_model import Example, Loss, PaddedModel, PaddingError

AGREEMENT = {FULL: 1e-4, SHORT: 2**-7}
"""Relative difference of two losses that is rounding, by the precision of values."""

CURVE_BATCHES = 3
"""Batches of each size whose peak is estimated, beside the largest."""

MEAN_BATCHES = 32
"""Batches over which a mean is taken; estimates, which equal what is measured."""

MOST_TRACED = 4_000
"""Tokens of the longest sequence up to which what Python takes is traced, too. A scan makes small
objects in each of its steps, and `tracemalloc` looks up the line of each one: of 30,000 tokens, the
four traced steps took longer than all others together."""


class MeasuredForms:
    """All forms of a model, and its sentences.

    Args:
        loss:      (graph, *example) -> loss of one sentence.
        padded:    the padded form of the model.
        examples:  tuples.
        optimizer: (parameters, learning rate) -> optimizer.
        seed:      of the shuffled order and of dropout.
        plan_for:  the device that all steps are planned for; None where they are run.
        precision: of the graphs.
    """

    def __init__(
        self,
        model: Module,
        loss: Loss,
        padded: PaddedModel,
        examples: Sequence[tuple[Example, ...]],
        optimizer: Callable[[Parameters, float], Optimizer],
        seed: int,
        plan_for: Device | None = None,
        precision: str = FULL,
    ) -> None:
        self.model = model
        self.examples, self.padded, self.seed = examples, padded, seed
        self.lengths = _lengths(padded, examples)
        self.optimizer = optimizer(model, 0.0)
        dtype = graph_dtype(model.parameters())
        self.plan_for, self._agreement = plan_for, AGREEMENT[of_values(precision, dtype)]
        self._steppers = {
            name: Stepper(
                padded.loss if is_padded(name) else loss,
                padded.collect,
                self.optimizer, dtype, seed, plan_for, precision,
            )
            for name in FORMS
        }  # fmt: skip

    def batches(self, name: str, batch_size: int, count: int) -> Sample:
        """Batches that stand for an epoch, in the order that a form takes."""
        if name == UNPADDED_BY_TOKENS:
            most = self.batch_tokens(batch_size)
            batches = random_batches_by_tokens(self.lengths, most, self.seed)
        elif name.endswith("random"):
            batches = random_batches(self.lengths, batch_size, self.seed)
        elif name == PADDED_BY_TOKENS:
            batches = batches_by_tokens(self.lengths, self.batch_tokens(batch_size))
        else:
            batches = bucketed_batches(self.lengths, batch_size)
        return sample(batches, self.lengths, count)

    def batch_tokens(self, batch_size: int) -> int:
        """Most tokens, padding among them, of a batch by tokens beside batches of sentences."""
        return tokens_of(batch_size, self.lengths)

    def agreement(self, batch: Batch) -> tuple[tuple[float, float], str]:
        """Losses of the padded and the unpadded form without dropout, and what they tell.

        Raises:
            PaddingError: the model does not run on padded examples.
            OutOfMemory:  a padded batch does not fit.
        """
        padded, unpadded = PADDED_RANDOM, UNPADDED_RANDOM
        was_training = self.model.training
        self.model.eval()
        try:
            unpadded_loss = self._first_loss(unpadded, batch)
            try:
                padded_loss = self._steppers[padded].value(self._examples_of(padded, batch))
            except (OutOfMemory, PaddingError):
                raise
            except DynbatchError as error:
                raise PaddingError(
                    f"{type(self.model).__name__} does not run on padded sentences: "
                    f"{problem_of(error)}.\n"
                    "  fix:  give pad=, (example, longest lengths) -> padded example, and where\n"
                    "        it needs masks padded_loss=, (graph, *padded example) -> loss"
                ) from error
        finally:
            self.model.train(was_training)
        return (padded_loss, unpadded_loss), _note(padded_loss, unpadded_loss, self._agreement)

    def _first_loss(self, name: str, batch: Batch) -> float:
        """The loss of a batch; what the loss function raises says how it was called."""
        try:
            return self._steppers[name].value(self._examples_of(name, batch))
        except Exception as error:
            error.add_note(
                "compare_padding calls loss(graph, *example); a Trainer, (graph, model, example)"
            )
            raise

    def train(self, name: str, batch: Batch) -> Step:
        stepper = self._steppers[name]
        train = stepper.train if self.plan_for is None else stepper.plan
        return train(self._examples_of(name, batch))

    def warm_up(self, name: str, chosen: Sample) -> None:
        """Run a step that is not counted, on the smallest batch: the first compiles programs."""
        if self.plan_for is None:
            self.train(name, min(chosen.batches, key=lambda batch: cells(batch, self.lengths)))

    def traced(self, name: str, batch: Batch) -> int | None:
        """All bytes that NumPy and Python held, where they can be measured."""
        if self.plan_for is not None or max(map(max, self.lengths)) > MOST_TRACED:
            return None
        return self._steppers[name].traced(self._examples_of(name, batch))

    def form(self, name: str, batch_size: int, chosen: Sample, steps: Sequence[Step]) -> Form:
        """Sum up the steps of a sample's batches, and estimate the mean of an epoch."""
        many = self.batches(name, batch_size, MEAN_BATCHES).spread
        uses = [self._steppers[name].estimate(self._examples_of(name, batch)) for batch in many]
        at_peak = max(range(len(steps)), key=lambda k: _total(steps[k].use))
        use, pool = steps[at_peak].use, None
        if self.plan_for is None:
            pool = self._steppers[name].pool.statistics()
        speeds = [
            tokens(batch, self.lengths) / step.seconds
            for batch, step in zip(chosen.batches, steps, strict=True)
            if step.seconds is not None
        ]
        causes = {**use.by_cause, "index tables": use.tables_bytes}
        computed = sum([cells(batch, self.lengths) for batch in many])
        real = sum([tokens(batch, self.lengths) for batch in many])
        return Form(
            name=name,
            peak_bytes=_total(use),
            mean_bytes=fmean(map(_total, uses)),
            value_bytes=max([_values(step.use) for step in steps]),
            by_cause={cause: size for cause, size in causes.items() if size},
            by_type=dict(use.by_type),
            stages=[(label, sum(held.values())) for label, held in use.stages],
            cells_a_token=computed / real if is_padded(name) else 1.0,
            tokens_per_second=median(speeds[: len(chosen.spread)]) if speeds else None,
            requested_bytes=None if pool is None else pool.peak_requested_bytes,
            reserved_bytes=None if pool is None else pool.peak_reserved_bytes,
            traced_bytes=self.traced(name, chosen.batches[at_peak]),
            gradient_bytes=max([step.gradient_bytes for step in steps]),
        )

    def causes(self, batch: Batch) -> tuple[int, list[Cause]]:
        """The peak of a step that saves nothing, and what each of `CAUSES` takes off it."""

        def peak(*on: bool) -> int:
            unpadded, chunked, reuses, recomputes = on
            name = UNPADDED_RANDOM if unpadded else PADDED_RANDOM
            again = recomputing(self.model) if recomputes else nullcontext()
            with nullcontext() if chunked else stored_logits(), again:
                use = self._steppers[name].estimate(self._examples_of(name, batch))
            return (use.peak_bytes if reuses else use.blocks_bytes) + use.tables_bytes

        count = len(CAUSES)
        without = before = peak(*[False] * count)
        causes = []
        for k, name in enumerate(CAUSES):
            alone = peak(*[j == k for j in range(count)])
            after = peak(*[j <= k for j in range(count)])
            causes.append(Cause(name, without - alone, before - after))
            before = after
        return without, causes

    def curve(self, name: str, batch_sizes: Sequence[int]) -> Mapping[int, int]:
        """Peak bytes of an epoch, estimated, by sentences of a batch."""
        peaks = {}
        for size in batch_sizes:
            if size <= len(self.examples):
                batches = self.batches(name, size, CURVE_BATCHES).batches
                stepper = self._steppers[name]
                uses = [stepper.estimate(self._examples_of(name, batch)) for batch in batches]
                peaks[size] = max(map(_total, uses))
        return peaks

    def within(self, name: str, batch_size: int, chosen: Sample, limit: int) -> WithinLimit:
        """The mini-batches with which a form stays within so many bytes of arena."""
        estimate = self._steppers[name].estimate
        many = self.batches(name, batch_size, MEAN_BATCHES).spread
        peaks = [estimate(self._examples_of(name, batch)).peak_bytes for batch in many]
        fitting = sum([peak <= limit for peak in peaks])
        batch = max(chosen.largest, key=lambda b: estimate(self._examples_of(name, b)).peak_bytes)
        forms = self._examples_of(name, batch)
        whole = estimate(forms).peak_bytes
        counts = (name, fitting, len(many), whole)
        try:
            use = estimate(forms, limit)
        except MemoryLimitError as error:
            return WithinLimit(*counts, None, error.least_bytes)
        return WithinLimit(*counts, use.peak_bytes, None, use.saving, use.recompute_share)

    def _examples_of(self, name: str, batch: Batch) -> Examples:
        chosen = [self.examples[i] for i in batch]
        return self.padded.batch(chosen) if is_padded(name) else chosen


@contextmanager
def recomputing(model: Module) -> Iterator[None]:
    """Have the model's scans keep the state of every √T-th step, and compute the others again."""
    modules = [module for module in model.modules() if getattr(module, "recompute", 0) is None]
    for module in modules:
        vars(module)["recompute"] = "sqrt"
    try:
        yield
    finally:
        for module in modules:
            vars(module)["recompute"] = None


def _lengths(padded: PaddedModel, examples: Sequence[Example]) -> list[tuple[int, ...]]:
    """The lengths of every example's sequences.

    Raises:
        PaddingError: an example has none, or not as many as the first; names the example.
    """
    lengths: list[tuple[int, ...]] = []
    for number, example in enumerate(examples):
        try:
            lengths.append(padded.lengths(example))
        except PaddingError as error:
            raise PaddingError(f"example {number}: {error}") from None
        if len(lengths[-1]) != len(lengths[0]):
            raise PaddingError(
                f"example {number} has {len(lengths[-1])} sequences, the first {len(lengths[0])}.\n"
                "  rule: all examples have as many\n  fix:  look at how this one was read"
            )
    return lengths


def _total(use: MemoryUse) -> int:
    return use.peak_bytes + use.tables_bytes


def _values(use: MemoryUse) -> int:
    """The most of activations, what is kept for backward, and their gradients."""
    return max([sum([held.get(cause, 0) for cause in VALUES]) for _, held in use.stages])


def _note(padded: float, unpadded: float, agreement: float) -> str:
    if abs(padded - unpadded) <= agreement * max(abs(padded), abs(unpadded)):
        return f"padded and unpadded form compute the same loss: {unpadded:.4f} nats on one batch"
    return (
        f"NOTE: the padded form's loss is {padded:.4f} nats, the unpadded one's {unpadded:.4f}: "
        "the model reads\nits padding (attention without a mask, a direction that begins in it, a "
        "mean over tokens),\nor its loss counts targets of -100, which F.cross_entropy ignores.\n"
        "The bytes stand. For an exact padded form give pad= and padded_loss=."
    )
