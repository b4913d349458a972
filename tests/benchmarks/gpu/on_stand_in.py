"""Python on a machine whose card is the stand-in, where cases, tests and shapes are tiny.

    python -m tests.benchmarks.gpu.on_stand_in PYTHON -m benchmarks.gpu.check --results FOLDER

PYTHON is what starts this: whoever wants another process gets it in the same way. With `-c CODE`,
CODE imports the stand-in as CuPy.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from contextlib import ExitStack
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest import mock

from benchmarks.gpu import cases, micro, prewarm
from tests.benchmarks.gpu.small import small_cases, tiny
from tests.cuda import devices, fake_cupy

FEW_TESTS = "tests/optim/test_clipping.py"
ABSENT = "benchmarks.peers.transformers_gpt2"  # reading it takes longer than all else
SHAPES = ((2, 5, 2, 16, True), (1, 3, 1, 8, False))


def main(python: str, *arguments: str) -> None:
    """Run `-m MODULE …` or `-c CODE`."""
    kind, what, *rest = arguments
    sys.executable, sys.argv = python, [what, *rest]
    with ExitStack() as here:
        if kind == "-c":
            here.enter_context(mock.patch.dict(sys.modules, {"cupy": fake_cupy}))
            exec(what, {"__name__": "__main__"})
            return
        if what == "pytest":
            few = [FEW_TESTS if word in ("tests", "tests/kernels/cuda") else word for word in rest]
            sys.argv = [what, *few]
            runpy.run_module(what, run_name="__main__")
            return
        here.enter_context(devices.device("shuffled"))
        here.enter_context(small_cases())
        here.enter_context(mock.patch.dict(sys.modules, {ABSENT: None}))
        part = importlib.import_module(what)
        for module, name, value in small_parts(part):
            if hasattr(module, name):
                here.enter_context(mock.patch.object(module, name, value))
        if hasattr(part, "main"):
            sys.exit(part.main())
        runpy.run_module(what, run_name="__main__")


def small_parts(part: ModuleType) -> list[tuple[ModuleType, str, Any]]:
    """One case, a few kernels and shapes: what is set in the modules of a part."""
    few, named = prewarm.all_kernels()[:2], cases.case_of
    small = {"batch": 2, "hidden": 8, "batches": 1, "rounds": 1}
    return [
        (part, "CASES", (tiny("tagger", batches=1),)),
        (part, "case_of", lambda options: replace(named(options), **small)),
        (prewarm, "all_kernels", lambda: few), (micro, "ROUNDS", 1), (micro, "LAUNCHES", 2),
        (micro, "PRODUCT", (3, 4, 5)), (micro, "SHAPES", SHAPES),
    ]  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
