"""The cases of the check at tiny sizes: dynbatch on the stand-in, PyTorch on the CPU."""

import functools
import json
from contextlib import contextmanager

import pytest

from benchmarks import lengths, workloads
from benchmarks.gpu import cases, speed
from benchmarks.gpu.cases import Case
from benchmarks.networks import (
    BertLayerSizes,
    Seq2SeqSizes,
    TaggerSizes,
    TransformerSizes,
    TreeSizes,
)
from benchmarks.workloads import Workload
from benchmarks.workloads.seq2seq import DynbatchSeq2Seq
from benchmarks.workloads.tagger import DynbatchTagger
from benchmarks.workloads.transformer import DynbatchTransformer
from benchmarks.workloads.tree import DynbatchTree
from tests.marks import quick

SMALL = {
    "tagger": Workload(TaggerSizes(30, 6, 5, 4), DynbatchTagger),
    "seq2seq": Workload(Seq2SeqSizes(30, 20, 6, 5), DynbatchSeq2Seq),
    "tree": Workload(TreeSizes(30, 6, 5, 4), DynbatchTree),
    "transformer": Workload(TransformerSizes(30, 8, 12, 2, 2, 80), DynbatchTransformer),
    "bert_layer": Workload(BertLayerSizes(30, 8, 12, 2, 1, 4), DynbatchTransformer),
}

each_workload = pytest.mark.parametrize("workload", quick(["tagger"], SMALL))


@contextmanager
def small_cases():
    """Inside, models and sentences of the cases are small, and there is one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "WORKLOADS", SMALL)
        patch.setattr(cases, "THREADS", 1)
        for name, length in (("MEAN_LENGTH", 3.0), ("SHORTEST", 1), ("LONGEST", 6)):
            patch.setattr(lengths, name, length)
        patch.setattr(workloads, "QUESTIONS", {"mean": 3.0, "bounds": (1, 6)})
        yield


def tiny(workload, **changes):
    return Case(workload, **({"batch": 2, "hidden": 8, "batches": 2, "rounds": 1} | changes))


def last(states):
    *_, state = states
    return state


@functools.cache
def told(workload):
    """All states that `speed` tells, as they are written."""
    return [json.loads(json.dumps(state)) for state in speed.measure(tiny(workload), "cpu")]


class Serial:
    def __init__(self, max_workers):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    map = staticmethod(map)
