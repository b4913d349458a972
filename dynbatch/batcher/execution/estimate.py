"""`estimate`: the memory of a run, without the run; of a GPU's, without the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dynbatch.backend import Device
from dynbatch.batcher.execution.executor import Executor
from dynbatch.batcher.planning.memory_use import EARLIER, MemoryUse
from dynbatch.batcher.planning.run_plan import Request, RunPlan
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.kernels.runtime.dry_run import DryCupy, dry_run
from dynbatch.memory import Pool
from dynbatch.memory.upstream import DeviceMemory


def estimate(executor: Executor, request: Request, device: Device) -> MemoryUse:
    """The memory that a run would hold on a device. No kernel runs; the graph does not change."""
    cupy = DryCupy(device.index) if device.is_cuda else None
    with executor.planned(request, device if cupy is None else cupy.device) as (plan, use):
        if cupy is None:
            return use
        with dry_run(cupy):
            tables = DryExecutor(executor, cupy).rehearse(request, plan, executor.steps)
        most = use.by_cause[EARLIER] + cupy.books.bytes
        return replace(use, tables_bytes=tables, device_bytes=most)


class DryExecutor(Executor):
    """Carries out plans on a GPU that need not be there: no kernel starts.

    Args:
        executor: of the graph.
        cupy:     takes the place of CuPy.
    """

    def __init__(self, executor: Executor, cupy: DryCupy) -> None:
        super().__init__(
            cupy.device, executor._dtype, executor._policy,
            Pool(upstream=DeviceMemory(cupy.device)), executor._trains, matmul=executor.matmul,
            precision=executor.precision,
        )  # fmt: skip

    def rehearse(self, request: Request, plan: RunPlan, past: Sequence[StepRun]) -> int:
        """Do a run, but for what it does on steps of earlier ones; return the bytes of its tables.

        Those keep what they have on their own device, and so do parameters.
        """
        new = set(plan.preparation.steps)
        for step in new:
            for parameter in step.nodes[0].all_parameters():
                _ = parameter.here  # all are on the device before the run begins
        stages = [
            stage._replace(steps=[step for step in stage.steps if step in new])
            for stage in plan.memory.stages
        ]
        self.steps = [*past]
        try:
            self._try(request, plan._replace(memory=replace(plan.memory, stages=stages)))
            self._end(request.loss is not None, [])
            return self._run.uploaded_bytes
        finally:
            self.undo()
            self.steps = []
            self.close()
