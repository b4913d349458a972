"""Checkpoints: one safetensors file with all that a run needs to go on exactly.

Tensors are named `model/PARAMETER` and `optimizer/PARAMETER/SLOT`; the rest is JSON in the file's
metadata: the position in training, the random states, the schedule and what the caller adds, with a
digest of itself and of every tensor (see `checkpoint_file`). Nothing in it tells on which device
the run was, and nothing in it is ever executed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dynbatch.arguments import MOST_NAMES, refused, state_differences
from dynbatch.atomic import replacing
from dynbatch.backend import Array
from dynbatch.errors import CheckpointError
from dynbatch.kernels.runtime import transfer
from dynbatch.kernels.runtime.precision import widened
from dynbatch.named_parameters import HasParameters
from dynbatch.optim import Average, Optimizer, Schedule
from dynbatch.parameter import ModelBuffer, Parameter
from dynbatch.train.checkpoint_file import CheckpointFile, metadata_of, safetensors
from dynbatch.train.digest import array_digest
from dynbatch.train.protocols import State
from dynbatch.train.random_states import RandomStates
from dynbatch.train.run_folder import other_copy

PathLike = str | os.PathLike[str]

MODEL, OPTIMIZER = "model/", "optimizer/"
"""With which the names of a model's parameters and an optimizer's state begin in a checkpoint."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """The contents of a checkpoint besides the tensors.

    Args:
        path:         the file.
        step:         updates made.
        epoch:        the epoch that was running, from 0.
        position:     mini-batches of it already done.
        extra:        what the caller of `save_checkpoint` added.
        random_state: state of the caller's NumPy generator, or None.
        graph_random: state of `dynbatch.random`.
        shapes:       of the tensors in the file, by name.
        optimizer:    name of its class, None if none was saved; of schedule and average, too.
    """

    path: Path
    step: int
    epoch: int
    position: int
    extra: State
    random_state: State | None
    graph_random: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    optimizer: str | None = None
    schedule: str | None = None
    average: str | None = None

    def check_random_state(self, generator: np.random.Generator | None) -> None:
        """Check that `restore_random_state` would take the generator.

        Raises:
            CheckpointError: no generator was saved, one of another kind, or its state is damaged.
        """
        if generator is None:
            return
        state: Any = self.random_state
        saved = "no generator" if state is None else str(state.get("bit_generator"))
        wanted = generator.bit_generator.state["bit_generator"]
        if saved != wanted:
            raise CheckpointError(
                f"{self.path}: the checkpoint holds {saved[:40]}, not {wanted}.\n"
                "  fix: save with random_state=generator, of the same kind."
            )
        try:
            trial: Any = type(generator.bit_generator)
            trial(0).state = state
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise CheckpointError(
                f"{self.path}: the state of the generator is damaged ({error!r}).\n"
                f"  fix: {other_copy(self.path)}"
            ) from error

    def restore_random_state(self, generator: np.random.Generator | None = None) -> None:
        """Restore `dynbatch.random` and the generator to the checkpoint's states.

        Raises:
            CheckpointError: as `check_random_state`.
        """
        self.check_random_state(generator)
        RandomStates(self.graph_random, self.random_state).restore(generator)


def save_checkpoint(
    path: PathLike,
    model: HasParameters,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    step: int = 0,
    *,
    epoch: int = 0,
    position: int = 0,
    random_state: np.random.Generator | None = None,
    average: Average | None = None,
    extra: Mapping[str, object] | None = None,
    save_frozen: bool = True,
) -> None:
    """Write a checkpoint atomically: the old file stays whole until the new one is on the disk.

    A sharded optimizer's state is of all ranks: all of them call it then, rank 0 writes, and they
    return when the file is there. Otherwise `if communicator.rank == 0:` keeps several processes
    from writing one file.

    Equal runs write equal bytes. Beside each tensor goes its digest, with which loading finds out
    whether it was damaged meanwhile: one more reading of all tensors, in the order of a second for
    a gigabyte, and no copy.

    Args:
        path:         the file, by custom `NAME.safetensors`; missing folders are made.
        step:         updates made.
        epoch:        the running epoch, from 0.
        position:     mini-batches of it already done.
        random_state: a generator of the caller's whose state is kept, beside that of
                      `dynbatch.random`.
        average:      a running mean of the weights, kept beside them.
        extra:        numbers, text, lists and dictionaries for the caller's own use, such as
                      the settings from which the model is built anew. A model of
                      `models.pretrained` adds its configuration by itself.
        save_frozen:  False leaves out the values of frozen parameters, and keeps their digests:
                      who loads the file has them, as from the folder of a pretrained model. A few
                      adapters then take few bytes. Buffers are saved, and weights into which an
                      adapter is merged.

    Raises:
        ArgumentError:   `average` is of frozen parameters, and these are left out; or all are
            frozen, so that nothing of the model would be in the file.
        CheckpointError: the file cannot be written; the one that was there is untouched.
        DtypeError:      `extra` holds something that JSON cannot.
        ImportError:     safetensors is not installed.
        ParallelError:   the optimizer is sharded, and another rank failed.
    """
    library = safetensors()
    slots = {} if optimizer is None else optimizer.state_dict()
    ranks = None if optimizer is None else optimizer.communicator
    if ranks is not None and ranks.rank != 0:
        ranks.barrier()
        return
    parameters = dict(model.named_parameters())
    left_out = {} if save_frozen else _left_out(model, parameters)
    if average is not None:
        require_trained(average, left_out.values())
    of_model: dict[str, object] = getattr(model, "checkpoint_extra", dict)()
    state: dict[str, object] = {
        "step": step,
        "epoch": epoch,
        "position": position,
        **asdict(RandomStates.now(random_state)),
        "optimizer": None if optimizer is None else type(optimizer).__name__,
        "schedule": None if schedule is None else type(schedule).__name__,
        "schedule_state": None if schedule is None else schedule.state_dict(),
        "extra": {**of_model, **(extra or {})},
    }
    tensors = {
        f"{MODEL}{name}": _on_host(parameter)
        for name, parameter in parameters.items()
        if name not in left_out
    }
    if settings := _settings_of(model):
        state["settings"] = settings
    if left_out:
        state["frozen"] = {name: array_digest(_on_host(p)) for name, p in left_out.items()}
    if optimizer is not None:
        tensors |= {f"{OPTIMIZER}{name}": array for name, array in slots.items()}
    if average is not None:
        tensors |= {f"average/{name}": array for name, array in average.state_dict().items()}
        state["average"] = {"kind": type(average).__name__, "num_updates": average.num_updates}
    metadata = metadata_of(state, tensors)
    path = Path(path)
    try:
        with replacing(path) as temporary:
            library.numpy.save_file(tensors, str(temporary), metadata)
    except (OSError, library.SafetensorError) as error:
        there = "the one already there is unchanged" if path.exists() else "nothing was written"
        raise CheckpointError(
            f"{path}: the checkpoint could not be saved; {there}.\n  cause: {error}\n"
            "  fix:   free space on the disk, or save to a folder that can be written."
        ) from error
    finally:
        if ranks is not None:
            ranks.barrier()


def load_checkpoint(
    path: PathLike,
    model: HasParameters,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    average: Average | None = None,
) -> CheckpointInfo:
    """Load parameters, and the state of optimizer, schedule and average if given.

    All is checked before anything is written: after an error model, optimizer and schedule are what
    they were. Every tensor that is loaded is compared with its digest, in the order of a second for
    a gigabyte; files of dynbatch's first format have none. Random states are not touched; see
    `CheckpointInfo.restore_random_state`. Parameters that the file leaves out (`save_frozen=False`)
    stay as they are, and have to be those of the model that was saved.

    Raises:
        CheckpointError: the file is missing, truncated, damaged, no checkpoint of dynbatch, or of
            another model, optimizer or schedule; or the model has other values where the file has
            none, or an adapter that is merged into its weights.
    """
    path = Path(path)
    with CheckpointFile(path) as file:
        state = file.state
        parameters = dict(model.named_parameters())
        if require_unmerged := getattr(model, "require_unmerged", None):
            require_unmerged(path)
        _check_model(path, parameters, file.shapes_of(MODEL), state["frozen"])
        _check_settings(path, state["settings"], model)
        if state["frozen"] and (require_config := getattr(model, "require_config", None)):
            require_config(path, state["extra"])
        _check_kind(path, "optimizer", state["optimizer"], optimizer)
        _check_kind(path, "schedule", state["schedule"], schedule)
        slots = {}
        if optimizer is not None:
            slots = file.read(OPTIMIZER)
            optimizer.check_state_dict(slots)
        if schedule is not None:
            schedule.check_state_dict(state["schedule_state"] or {})
        means, saved = {}, state["average"] or {"kind": None, "num_updates": 0}
        _check_kind(path, "average", saved["kind"], average)
        if average is not None:
            means = file.read("average/", kinds="F")
            average.check_state_dict(means, saved["num_updates"])
        values = file.read(MODEL, kinds="F")
    for name, array in values.items():
        parameters[name].assign(array)
    if optimizer is not None:
        optimizer.load_state_dict(slots)
    if schedule is not None:
        schedule.load_state_dict(state["schedule_state"])
    if average is not None:
        average.load_state_dict(means, saved["num_updates"])
    return _info(file)


def read_checkpoint(path: PathLike) -> CheckpointInfo:
    """Read everything but the tensors, for instance to build the model from `extra`.

    Raises:
        CheckpointError: the file is missing, truncated or no checkpoint of dynbatch, or what stands
            beside the tensors is damaged; the tensors are not read.
    """
    with CheckpointFile(Path(path)) as file:
        return _info(file)


def _info(file: CheckpointFile) -> CheckpointInfo:
    names = ("step", "epoch", "position", "extra", "random_state", "graph_random")
    fields = {name: file.state[name] for name in (*names, "optimizer", "schedule")}
    average = (file.state["average"] or {}).get("kind")
    return CheckpointInfo(file.path, **fields, shapes=file.shapes, average=average)


def frozen_of(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The parameters that a checkpoint of trained ones leaves out: frozen ones but buffers."""
    return {
        name: p for name, p in parameters.items() if p.frozen and not isinstance(p, ModelBuffer)
    }


def _left_out(model: HasParameters, parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The parameters that a checkpoint of trained ones of a model leaves out."""
    rewritten: set[int] = getattr(model, "rewritten", set)()  # an adapter is merged into them
    left_out = {name: p for name, p in frozen_of(parameters).items() if p.uid not in rewritten}
    if parameters and len(left_out) == len(parameters):
        raise refused(
            "save_checkpoint", f"save_frozen=False, and all {len(parameters):,} parameters of this "
            f"{type(model).__name__} are frozen",
            "a file of what is trained has a parameter or more",
            "models.unfreeze what is trained, or leave save_frozen=False out",
        )  # fmt: skip
    return left_out


def require_trained(average: Average, left_out: Iterable[Parameter]) -> None:
    """Raise `ArgumentError` if a mean is of parameters that a checkpoint leaves out."""
    uids = {parameter.uid for parameter in left_out}
    names = [name for name, parameter in average.named_parameters() if parameter.uid in uids]
    if names:
        raise refused(
            "save_frozen=False", f"the average is of frozen parameters, such as {names[0]!r}",
            "what is left out of a checkpoint does not change",
            "optim.Average([pair for pair in model.named_parameters() if not pair[1].frozen])",
        )  # fmt: skip


def _on_host(parameter: Parameter) -> Array:
    return np.ascontiguousarray(transfer.to_host(widened(parameter.value)))


def _check_model(
    path: Path,
    parameters: dict[str, Parameter],
    saved: Mapping[str, tuple[int, ...]],
    frozen: Mapping[str, str],
) -> None:
    """Check that a model has the parameters of a checkpoint.

    Args:
        frozen: digests of those that are not in it.
    """
    wanted = {name: p.shape for name, p in parameters.items() if name not in frozen}
    saved = {**saved, **{name: () for name in frozen if name not in parameters}}
    if differences := state_differences(wanted, saved, "model"):
        fix = "with the sizes it was saved with."
        if wanted.keys() != saved.keys():
            fix = (
                "by the code it was saved with; or begin a new run from the parameters that it "
                f"shares,\n       in the file as {MODEL}NAME: "
                "model.load_state_dict({**model.state_dict(), **shared})"
            )
        raise CheckpointError(
            f"{path}: saved from another model; nothing was loaded.\n{differences}\n"
            f"  fix: build the model {fix}"
        )
    changed = [
        name
        for name, digest in frozen.items()
        if array_digest(_on_host(parameters[name])) != digest
    ]
    if changed:
        raise CheckpointError(
            f"{path}: has trained parameters alone, and {len(changed):,} others are not those of "
            f"its run; nothing was loaded.\n  others: {', '.join(changed[:MOST_NAMES])}\n"
            "  rule: what was frozen is not in the file, and is the model's own\n"
            "  fix:  load the model, or the folder, that the run began with, then the checkpoint"
        )


def _settings_of(model: HasParameters) -> dict[str, float]:
    """The numbers by which a model computes beside its parameters."""
    settings: dict[str, float] = getattr(model, "checkpoint_settings", dict)()
    return settings


def _check_settings(path: Path, saved: Mapping[str, float], model: HasParameters) -> None:
    """Check that a model computes by the numbers of a checkpoint, if it has some."""
    settings = _settings_of(model)
    others = [
        f"{name} {settings.get(name)}, saved {value}"
        for name, value in saved.items()
        if settings.get(name) != value
    ]
    if others:
        raise CheckpointError(
            f"{path}: saved from a model with other numbers; nothing was loaded.\n"
            f"  others: {'; '.join(others[:MOST_NAMES])}\n"
            "  rule: what an adapter adds is multiplied by its scale, α / r\n"
            "  fix:  add the adapter with the lora_alpha, ranks and use_rslora of the run"
        )


def _check_kind(path: Path, what: str, saved: str | None, loaded: object | None) -> None:
    if loaded is not None and saved != type(loaded).__name__:
        raise CheckpointError(
            f"{path}: saved with {saved or 'no ' + what}, given {type(loaded).__name__}; "
            f"nothing was loaded.\n  fix: give the {what} it was saved with; or begin a new run "
            "from the model alone: train.load_checkpoint(path, model)"
        )
