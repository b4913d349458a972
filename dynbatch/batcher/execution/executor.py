"""`Executor`: carries out plans. It alone adds gradients, and knows no operator by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dynbatch.backend import Array, Device, DType
from dynbatch.batcher.execution.forms import change_form, round_step
from dynbatch.batcher.execution.observer import Wrap
from dynbatch.batcher.execution.record import GraphStatistics, RunTimes, seconds_between
from dynbatch.batcher.execution.recorded_stages import RecordedStages
from dynbatch.batcher.execution.repeated import RepeatedRun
from dynbatch.batcher.execution.run import Arenas, Run, add_left, apply, enter_again, free
from dynbatch.batcher.execution.stage_runner import StageRunner, StepActions
from dynbatch.batcher.planning.gradient_bytes import gradient_bytes, parameter_bytes
from dynbatch.batcher.planning.memory_plan import MemoryPlan
from dynbatch.batcher.planning.memory_use import MemoryUse
from dynbatch.batcher.planning.out_of_memory import advised
from dynbatch.batcher.planning.resting_run import RestingRun, keep, key_of, take
from dynbatch.batcher.planning.run_plan import Request, RunPlan, RunPlanner, require_gradients
from dynbatch.batcher.planning.stages import FORMS, Stage, StageKind
from dynbatch.batcher.schedule.plan import Plan
from dynbatch.batcher.schedule.policies import Policy
from dynbatch.batcher.steps.preparation import Preparation, StepMaker, forget
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.errors import MemoryLimitError, OutOfMemory
from dynbatch.kernels import arrays
from dynbatch.kernels.backends import reason, settings
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.compiling import seconds_compiling
from dynbatch.kernels.runtime.precision import FULL, multiplying
from dynbatch.kernels.runtime.stream import Stream, refused, stream_of
from dynbatch.kernels.runtime.tasks import recording
from dynbatch.kernels.runtime.workers import ThreadSpan
from dynbatch.memory import Pool
from dynbatch.parameter import Parameter


class Executor:
    """Runs the nodes of one graph, in as many runs as values are asked for.

    Args:
        device: where values live.
        dtype:  of all values.
        policy: a name of `policies.POLICIES`, or a function.
        pool:   where arenas come from.
        trains: whether a backward may follow a run.
        observers: who look at each step, from the innermost to the outermost. Then no value is
            written over an input, and steps run one after the other.
        matmul: the precision of products with weights; `precision`, that of values.
        profile: whether to record what each thread does.
        rows_of: makes the rows of steps in reports, before the steps are forgotten.

    Attributes:
        statistics, times: of all runs, and `threads`, what each thread did, where that is recorded.
        steps, plans:      of all runs; `numbers`, those of `numbers_of` each plan's nodes.
    """

    def __init__(
        self,
        device: Device,
        dtype: DType,
        policy: str | Policy,
        pool: Pool,
        trains: bool,
        observers: Sequence[Wrap] = (),
        matmul: str = FULL,
        profile: bool = False,
        precision: str = FULL,
        rows_of: Callable[[Sequence[StepRun]], list[Any]] = lambda steps: [],
    ) -> None:
        self._rows_of = rows_of
        self.statistics = GraphStatistics()
        self.steps: list[StepRun] = []
        self.plans: list[Plan] = []
        self.numbers: list[bytes] = []
        self.device = device
        self._dtype = dtype
        self.matmul = matmul
        self.precision = precision
        self._pool = pool
        itemsize = np.dtype(dtype).itemsize
        self._policy = policy
        self._maker = StepMaker(dtype, device, policy)
        self.is_observed = bool(observers)
        self._trains = trains
        self._planner = RunPlanner(trains, itemsize, not observers, precision != FULL)
        self._actions = StepActions(device, self.statistics)
        for wrap in observers:
            self._actions = wrap(self._actions)
        self._stages = StageRunner(device, self._actions, not observers)
        self._arenas = Arenas(pool, dtype)
        self._differentiated: list[StepRun] = []
        self._run = self._fullest = Run(0, 0, 0)
        self._last: MemoryPlan | None = None
        self._memory_use: Callable[[], MemoryUse] = lambda: MemoryUse.of((), ())
        self._only: RestingRun | None = None  # the run, as long as it is the graph's only one
        self._recording: RecordedStages | None = None  # of that run, when it is another graph's too
        self._ended: list[Any] = []  # rows of forgotten steps
        self._ending: list[StepRun] = []
        self.times: list[RunTimes] = []
        self.threads: list[ThreadSpan] | None = [] if profile else None

    @property
    def _stream(self) -> Stream:
        """The device's stream in the running thread, which kernels use too."""
        return stream_of(self.device)

    def run(self, request: Request) -> None:
        """Compute nodes, none computed yet; then backward from the loss, if there is one.

        `finish` must follow. Where no memory is left, the pool gives back what it holds unused, and
        the run is tried once more.

        Raises:
            OutOfMemory: even then, or the limit is too low. After any error the graph is as it was
                before the run.
        """
        try:
            return self._try(request)
        except MemoryLimitError:
            raise
        except MemoryError:
            pass  # the traceback of a handler would keep the arena of the first try
        self._pool.release()
        try:
            self._try(request)
        except OutOfMemory as error:
            room = self._pool.room_bytes
            raise advised(error, request, self._planned_use, room) from error
        except MemoryError as error:
            if not self.device.is_cuda:
                raise
            raise refused(error, "what it computes with", self._stream.label) from error

    @contextmanager
    def planned(
        self, request: Request, device: Device | None = None
    ) -> Iterator[tuple[RunPlan, MemoryUse]]:
        """The plan of the same `run`, and the memory that it would hold. The graph does not change.

        Args:
            device: to run on; None for the graph's own. It need not be there.
        """
        plan = self._plan(request, device)
        try:
            require_gradients(request, plan.memory.graph)
            yield (
                plan,
                replace(
                    plan.use(self._dtype.itemsize, self._arenas.num_bytes)(),
                    parameter_bytes=parameter_bytes(plan.preparation.steps),
                    gradient_bytes=gradient_bytes(plan.memory.backward, device or self.device),
                ),
            )
        finally:
            plan.preparation.forget()

    def _planned_use(self, request: Request) -> MemoryUse:
        with self.planned(request) as (_, use):
            return use

    def _try(self, request: Request, plan: RunPlan | None = None) -> None:
        begin = time.perf_counter()
        self.device.use()
        loss = request.loss
        self._run = run = Run(len(self.steps), len(self.plans), len(self._arenas))
        run.first = run.steps if loss is None else 0
        run.uploaded_before = self._stream.uploaded_bytes
        self._actions.begin()
        try:
            plan = plan or self._plan_or_resting(request)
            run.preparation, stages = plan.preparation, plan.memory.stages
            require_gradients(request, plan.memory.graph)
            if loss is not None:
                run.claim.take([p for stage in stages for s in stage.steps for p in s.parameters])
            run.stash_gradients(plan.memory.graph)
            if loss is not None:
                run.drop_gradients(self.steps)
            arena = self._allocate(plan)
            for step in plan.preparation.steps:
                step.planned = len(self.plans) + step.planned[0], step.planned[1]
            self.steps += plan.preparation.steps
            self.plans += plan.preparation.plans
            self.numbers += plan.preparation.numbers
            placed = time.perf_counter()
            # A division by zero becomes inf, and at last a NumericError of the loss: no warnings.
            with (
                parallel.one_blas_thread(), np.errstate(all="ignore"), multiplying(self.matmul),
                nullcontext() if self.threads is None else recording(self.threads),
            ):  # fmt: skip
                if loss is not None:
                    arrays.fill(loss._block.gradients().values, 0)
                    arrays.fill(loss._block.node_gradient(loss), 1)
                started = time.perf_counter()
                self._run_stages(stages, arena)
                run.kernel_seconds = seconds_between(started, time.perf_counter())
            self._differentiated = [
                step for stage in stages for step in stage.steps if stage.is_backward or step.fused
            ]
            run.times = RunTimes(begin, plan.preparation.scheduled, placed, time.perf_counter())
            run.compile_seconds = seconds_compiling(begin, run.times.end)
            seconds = run.times.end - begin - run.compile_seconds
            self.statistics.host_seconds += max(0.0, seconds - run.kernel_seconds)
        except BaseException:
            self.undo()
            raise

    def memory_use(self) -> MemoryUse:
        """The memory of the run that held most so far."""
        use = self._memory_use()
        if self.device.is_cuda:
            use = replace(use, tables_bytes=self._fullest.uploaded_bytes)
        return use

    def finish(self, add_gradients: bool = False) -> None:
        """End a run: start queued work for the GPU, and free blocks that will not be read.

        Args:
            add_gradients: what backward left is added to `parameter.grad` first.

        Raises:
            BackendError, OutOfMemory: the device failed. The graph is as it was before the run; of
                parameters whose gradient may be half added it is forgotten.
        """
        self.device.use()
        touched: list[Parameter] = []
        try:
            self._end(add_gradients, touched)
        except BaseException:
            for parameter in touched:
                parameter.grad = None
            self.undo()
            raise
        if not add_gradients:
            self._run.stashed.put_back()
        self._run.claim.release()
        self._settle()

    def _end(self, add_gradients: bool, touched: list[Parameter]) -> None:
        if add_gradients:
            begin, stashed = time.perf_counter(), self._run.stashed
            with multiplying(self.matmul), parallel.one_blas_thread():
                add_left(self._actions, self._differentiated, touched)
                touched += stashed.parameters
                stashed.replace()
            seconds = seconds_between(begin, time.perf_counter())
            self.statistics.kernel_seconds += seconds
        self.flush()
        self._run.uploaded_bytes = self._stream.uploaded_bytes - self._run.uploaded_before

    def flush(self) -> None:
        """Start queued work for the GPU, if there is one."""
        self._actions.flush()

    def repeated(self) -> RepeatedRun:
        """The last run, which is the only one and has no loss, to be done again."""
        assert self._last is not None
        return RepeatedRun(self._last, self._arenas, self.statistics, self.matmul, self.device)

    def rows(self) -> list[Any]:
        """The rows of all steps in reports."""
        return self._ended + self._rows_of(self.steps)

    def close(self) -> None:
        """Give the arenas back to the pool. Plans, statistics and the report stay."""
        self._run.claim.release()
        # In one statement: after an interrupt below, a second call reads no forgotten step.
        self._ended, self._ending, self.steps = self.rows(), [*self._ending, *self.steps], []
        rested, self._only, self._recording = self._only, None, None
        if rested is None:
            for step in self._ending:
                forget(step)
        else:
            rested.rest()
        self._ending = []
        self._differentiated = []
        self._last = None
        self._arenas.give_after(0)
        self._actions.close()
        if rested is not None:
            keep(rested)  # last: from now on the steps may be another graph's

    # Before ---------------------------------------------------------------------------------------

    def _plan_or_resting(self, request: Request) -> RunPlan:
        """The plan of the run; of one that rests, where the graph's first is like it."""
        self._only = self._recording = None
        is_first = not (self.steps or self.plans or self.is_observed or self.device.is_cuda)
        if request.loss is None or request.limit is not None or not is_first:
            return self._plan(request)
        (part,) = request.parts(1)
        key = key_of(part, request, self._settings())
        resting = None if key is None else take(key)
        if resting is None:
            plan = self._plan(replace(request, parts=lambda count: [part]))
            self._run.preparation = plan.preparation  # should an interrupt come before it is used
            self._only = None if key is None else RestingRun(key, plan)
            return plan
        plan = resting.of(part.nodes)
        if self.threads is None and not reason():  # C runs, and nobody asks who does what
            if resting.recording is None:
                resting.recording = RecordedStages(self.device, resting.parameters)
            self._recording = resting.recording
        self._run.preparation, self._only = plan.preparation, resting
        return plan

    def _settings(self) -> Hashable:
        """The settings of graph and kernels that plans follow from."""
        precisions = self._dtype.char, self.matmul, self.precision
        return self._policy, precisions, self._trains, settings()

    def _plan(self, request: Request, device: Device | None = None) -> RunPlan:
        kept = {node.index for node in request.kept}
        maker = self._maker
        if device is not None and device is not self.device:
            maker = StepMaker(self._dtype, device, self._policy)
        return self._planner.plan(
            lambda count: maker.prepare(request.parts(count), kept),
            request, self.steps, self._arenas.num_bytes,
        )  # fmt: skip

    def _allocate(self, plan: RunPlan) -> Array:
        arenas, run, held = self._arenas, self._run, self._arenas.num_bytes
        run.memory = plan.memory
        arena, run.scratch = apply(plan.memory, arenas)
        self.statistics.peak_bytes = arenas.peak_bytes
        if arenas.num_bytes == arenas.peak_bytes:
            self._memory_use, self._fullest = plan.use(self._dtype.itemsize, held), run
        return arena

    # The kernels ----------------------------------------------------------------------------------

    def _run_stages(self, stages: Sequence[Stage], arena: Array) -> None:
        work, scratch = partial(self._run_stage, arena=arena), self._run.scratch
        if self._recording is None:
            for stage in stages:
                work(stage)
        else:
            self._recording.run(stages, work, [arena] if scratch is None else [arena, scratch])

    def _run_stage(self, stage: Stage, arena: Array) -> None:
        if stage.kind is StageKind.ACCUMULATE:
            add_left(self._actions, stage.steps, [])
        elif stage.kind is StageKind.MULTIPLY:
            left = [step.gradients for step in stage.steps if step.gradients]
            self._actions.commit([gradients.take_products() for gradients in left])
        elif stage.kind in FORMS:
            change_form(stage, arena)
            if stage.kind is StageKind.NARROW:
                self._note_rounded(stage)
        else:
            if stage.kind is StageKind.RECOMPUTE and self._run.memory is not None:
                enter_again(self._run.memory, stage.steps, arena)
            self._stages.run(stage, arena)
            if self.precision != FULL and not stage.is_backward:
                assert self._run.memory is not None
                rounded = self._run.memory.graph.rounded
                for step in stage.steps:
                    round_step(step, rounded.get(step, ()))
                self._note_rounded(stage)

    def _note_rounded(self, stage: Stage) -> None:
        for step in stage.steps if self.is_observed else ():
            self._actions.rounded(step)

    # After ----------------------------------------------------------------------------------------

    def undo(self) -> None:
        """Leave graph, pool and queue as they were before a run that failed."""
        run = self._run
        self._stream.discard()
        for step in self.steps:
            step.gradients = None
        run.stashed.put_back()
        run.claim.release()
        run.preparation.forget()
        del self.steps[run.steps :], self.plans[run.plans :], self.numbers[run.plans :]
        self._differentiated = []
        self._only = self._recording = None
        run.put_gradients_back()
        self._arenas.give_after(run.arenas)

    def _settle(self) -> None:
        """Count the run, and free the blocks that will not be read."""
        begin = time.perf_counter()
        new = self.steps[self._run.steps :]
        self._run.preparation = Preparation()
        self._run.gradients = []
        if self._run.scratch is not None:
            self._arenas.give(self._run.scratch)
            self._run.scratch = None
        if self._run.times is not None:
            self.times.append(self._run.times)
        statistics = self.statistics
        changed = self.steps[self._run.first :]
        # With a backward, earlier steps are counted anew. A queue counts its launches itself.
        statistics.count(new, changed, not self._run.first, not self.device.is_cuda)
        statistics.activation_bytes += sum([s.block.size for s in new]) * self._dtype.itemsize
        statistics.kernel_seconds += self._run.kernel_seconds
        statistics.compile_seconds += self._run.compile_seconds
        if self._run.memory is not None:
            free(self._run.memory)
            self._last, self._run.memory = self._run.memory, None
        statistics.host_seconds += time.perf_counter() - begin
