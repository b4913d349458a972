"""`compare_padding`: the same model on the same sentences, padded and unpadded, in bytes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

from tqdm import tqdm

from dynbatch import optim
from dynbatch.arguments import is_integer, listed, shown
from dynbatch.backend import planned_device
from dynbatch.data_set import DataSet, LazySequence, indexed
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.memory.sizes import parse_bytes
from dynbatch.models.module import Module
from dynbatch.named_parameters import Parameters
from dynbatch.padding.batches import Sample
from dynbatch.padding.comparison import Comparison
from dynbatch.padding.forms import CURVES, FORMS, PADDED_RANDOM
from dynbatch.padding.measure import Step
from dynbatch.padding.measured_models import MeasuredForms
from dynbatch.padding.padded_model import (
    Example,
    Loss,
    Pad,
    PaddingError,
    described,
    pad_model,
    parts_of,
)

BATCH_SIZES = (8, 16, 32, 64, 128)

PLANNED = "planned, not run: that both forms compute the same loss was not checked"


def compare_padding(
    model: Module,
    loss: Loss,
    sentences: DataSet[Example],
    batch_size: int = 64,
    *,
    pad: Pad | None = None,
    padded_loss: Loss | None = None,
    optimizer: Callable[[Parameters, float], optim.Optimizer] = optim.Adam,
    num_batches: int = 8,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seed: int = 0,
    memory_limit: int | str | None = None,
    progress: bool = False,
    plan_for: str | None = None,
    precision: str = FULL,
) -> Comparison:
    """Measure a training step on batches padded in three ways, and on unpadded ones.

    Padded are batches in random order, bucketed by length, and of a fixed number of tokens.

    Each is the same step (graph, forward, backward, optimizer) of the same library, kernels,
    parameters and sentences; the padded form gives the same loss and gradients (see `pad_model`).
    The model's values stay as they are (the learning rate is 0); its gradients are cleared.

    Args:
        model:       where its parameters are, on the CPU or on a GPU, it is measured.
        loss:        (graph, *example) -> the loss of one sentence: `model.loss`, say. A `Trainer`
                     takes (graph, model, example): loss=lambda graph, *example: its_loss(graph,
                     model, example) makes this form of that one.
        sentences:   the examples, a list or a data set: tuples of lists or arrays of ids, or one
                     list or array.
        batch_size:  sentences of a batch. Batches by tokens have as many tokens, padding among
                     them, as so many sentences have on average without.
        pad:         (example, longest lengths) -> padded example, for models of your own; by
                     default sequences are lengthened by zeros, the last of several by targets that
                     `F.cross_entropy` ignores.
        padded_loss: (graph, *padded example) -> loss, where that needs masks.
        optimizer:   (parameters, learning rate) -> its optimizer.
        num_batches: batches to measure of each order, beside the epoch's largest.
        batch_sizes: sizes to estimate the peak for, but for those above the number of sentences;
                     none leaves the curves out.
        memory_limit: what each form would do to stay within so many bytes, or "2GiB", and at what
                     cost, is planned too.
        seed:        of the shuffled order and of dropout.
        progress:    show a progress bar.
        plan_for:    plan all steps for this device, "cuda" say, and run none: its bytes, by the
                     planner that a step there uses, without the device, without CuPy, and without
                     seconds or losses. The model may be on the CPU.
        precision:   of all graphs, "bfloat16" for values in half the memory; see `Graph`, which
                     raises what it refuses.

    Raises:
        PaddingError: there are fewer sentences than a batch has, they cannot be padded, a number is
            below 1, `loss`, `pad` or `padded_loss` is not a function, or `loss` takes other
            arguments than an example has.
        ArgumentError: `sentences` has keys and not places, `batch_sizes` is not a list, or
            `memory_limit` not a number of bytes.
        BackendError: `plan_for` is the name of no device.
        OutOfMemory:  a batch of one of the forms does not fit.

    Example:
        >>> import numpy as np, dynbatch as db
        >>> from dynbatch.padding import LanguageModel
        >>> rng = np.random.default_rng(0)
        >>> sentences = [rng.integers(50, size=n) for n in rng.geometric(0.1, size=64)]
        >>> model = LanguageModel(vocabulary=50, embed=16, hidden=16, rng=0)
        >>> found = db.memory.compare_padding(
        ...     model, model.loss, sentences, batch_size=32, num_batches=1, batch_sizes=())
        >>> found.saved() > 0.5
        True
    """
    batch_sizes = listed("compare_padding", "batch_sizes", batch_sizes, "give batch_sizes=[32]")
    limit = None if memory_limit is None else parse_bytes("memory_limit", memory_limit)
    planned = None if plan_for is None else planned_device(plan_for)
    plain = indexed("compare_padding", "sentences", sentences)
    examples = LazySequence(range(len(plain)), lambda place: parts_of(plain[place]))
    for name, number in [
        ("batch_size", batch_size),
        ("num_batches", num_batches),
        *[("batch_sizes", size) for size in batch_sizes],
    ]:
        if not is_integer(number) or number < 1:
            raise PaddingError(
                f"compare_padding: {name} of {number!r}.\n  fix:  give a whole number, 1 or more"
            )
    if batch_size > len(examples):
        raise PaddingError(
            f"compare_padding: {len(examples)} sentences for batches of {batch_size}.\n"
            "  rule: there is at least one batch\n"
            "  fix:  give more sentences, or a smaller batch_size"
        )
    for name, function in (("loss", loss), ("pad", pad), ("padded_loss", padded_loss)):
        if function is not None and not callable(function):
            text = repr(function) if isinstance(function, str) else shown(function)
            raise PaddingError(f"compare_padding: {name} is {text}, not a function.")
    _require_call(loss, examples[0])
    padded = pad_model(model, loss, pad, padded_loss)
    measured = MeasuredForms(model, loss, padded, examples, optimizer, seed, planned, precision)
    if not any(map(sum, measured.lengths)):
        raise PaddingError("compare_padding: no sentence has a token: there is nothing to measure.")
    samples = {name: measured.batches(name, batch_size, num_batches) for name in FORMS}
    with tqdm(
        total=_work(samples, batch_sizes), disable=not progress, unit="step", ncols=80
    ) as bar:
        most_padded = samples[PADDED_RANDOM].largest[0]
        losses, note = None, PLANNED
        if planned is None:
            losses, note = measured.agreement(most_padded)
        steps = _measure(measured, samples, bar)
        forms = {
            name: measured.form(name, batch_size, samples[name], steps[name]) for name in FORMS
        }
        without, causes = measured.causes(most_padded)
        curves = {}
        for name in CURVES if batch_sizes else ():
            curves[name] = measured.curve(name, batch_sizes)
            bar.update(len(batch_sizes))
        limited = []
        if limit is not None:
            limited = [measured.within(name, batch_size, samples[name], limit) for name in FORMS]
    first = model.parameters()[0]
    where = f"on {first.device.name}" if planned is None else f"planned for {planned.name}"
    return Comparison(
        title=f"{type(model).__name__}, {model.num_parameters():,} parameters, {first.dtype} "
        f"{where}{'' if precision == FULL else f', values in {precision}'}",
        batch_size=batch_size,
        batch_tokens=measured.batch_tokens(batch_size),
        measured=len(samples[PADDED_RANDOM].batches),
        epoch=samples[PADDED_RANDOM].epoch,
        forms=forms,
        without=without,
        causes=causes,
        parameter_bytes=sum([parameter.value.nbytes for parameter in model.parameters()]),
        optimizer_bytes=measured.optimizer.state_bytes,
        by_batch_size=curves,
        losses=losses,
        note=note,
        limit=limit,
        limited=limited,
    )


def _require_call(loss: Loss, example: Example) -> None:
    """Raise a PaddingError unless the loss can be called with a graph and the example's parts."""
    try:
        inspect.signature(loss).bind(None, *example)
    except ValueError:  # some functions of C do not tell
        return
    except TypeError as error:
        raise PaddingError(
            f"compare_padding: loss cannot be called with example 0, {described(example)}: {error}."
            "\n  rule: loss(graph, *example): the graph, and each part of the example\n"
            "  fix:  give examples of other parts, or wrap the loss: loss=lambda graph, ids: "
            "model.loss(graph, ids[:-1], ids[1:])"
        ) from None


def _work(samples: Mapping[str, Sample], batch_sizes: Sequence[int]) -> int:
    measured = sum([1 + len(sample.batches) for sample in samples.values()])
    return measured + len(CURVES) * len(batch_sizes)


def _measure(
    measured: MeasuredForms, samples: Mapping[str, Sample], bar: tqdm
) -> dict[str, list[Step]]:
    """Train on every batch of every form, taking turns; a first step of each is not counted."""
    steps: dict[str, list[Step]] = {name: [] for name in FORMS}
    for name in FORMS:
        measured.warm_up(name, samples[name])
        bar.update()
    for k in range(max([len(sample.batches) for sample in samples.values()])):
        for name in FORMS:
            if k < len(samples[name].batches):
                bar.set_description(name)
                steps[name].append(measured.train(name, samples[name].batches[k]))
                bar.update()
    return steps
