"""Both sides of a case beside each other, in each precision, with where the time of a step goes."""

import itertools

import numpy as np
import pytest

from benchmarks.gpu import cases, speed, trace
from benchmarks.networks import (
    initial_values,
)
from benchmarks.workloads import Workload
from benchmarks.workloads.tagger import DynbatchTagger
from tests.benchmarks.gpu.small import SMALL, each_workload, last, tiny, told


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@each_workload
def test_speed_has_both_sides_and_what_the_host_did(cuda, torch, workload):
    found = told(workload)[-1]
    of_a_card = {"pytorch-varlen"} & set(cases.PEERS[workload])
    both = {name: {"dynbatch", *cases.ROUNDED_PEERS[workload]} for name in cases.ROUNDED}
    rounded = {f"{side}-{name}": name for name, sides in both.items() for side in sides}
    assert set(found["sides"]) == {"dynbatch", *cases.PEERS[workload], *rounded} - of_a_card
    assert found["disagreement"] == "" and found["skipped"].keys() == of_a_card
    for name, side in found["sides"].items():
        precision = rounded.get(name, "float32")
        base = found["sides"][cases.in_precision("dynbatch", precision)]
        assert side["precision"] == precision and side["ratio"] == side["ms"] / base["ms"]
        assert side["ms"] > 0 and side["row_ms"] > 0 and side["tokens_per_second"] > 0
        assert 0 < side["queued_ms"] <= side["wall_ms"] and 0 < side["host_share"] <= 1
        assert side["busy"] is None or 0 < side["busy"] <= 1
    ours = found["sides"]["dynbatch"]
    assert ours["ratio"] == 1 and min(ours[k] for k in ("build_ms", "run_ms", "update_ms")) > 0
    assert found["uploads"] == 1 and found["launches"] > found["batches"] > 0


def test_sides_that_disagree_are_measured_and_named(cuda, torch, monkeypatch):
    class Doubled(DynbatchTagger):
        def sentence_loss(self, graph, source, target):
            return 2.0 * super().sentence_loss(graph, source, target)

    monkeypatch.setitem(SMALL, "tagger", Workload(SMALL["tagger"].sizes, Doubled))
    found = last(speed.measure(tiny("tagger"), "cpu"))
    assert "do not compute the same" in found["disagreement"]


@pytest.mark.parametrize("workload", ["transformer", "bert_layer"])
def test_flash_attention_for_varying_lengths_is_given_what_it_wants(torch, monkeypatch, workload):
    """Where it runs there is a card: here its place is taken by attention sentence by sentence."""
    import inspect

    from torch.nn.attention import varlen

    from benchmarks.peers import pytorch_transformer

    # (T, heads, D) of one dtype that it has, int32 offsets; causal in the words of two versions.
    called = []

    def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size=(-1, -1)):
        called.append(window_size)
        assert query.dtype == key.dtype == value.dtype == torch.bfloat16
        assert query.ndim == 3 and query.stride(-1) == 1 and cu_seq_q.dtype == torch.int32
        assert max_q == max_k == int(cu_seq_q.diff().max()) and cu_seq_k is cu_seq_q
        assert int(cu_seq_q[-1]) == len(query)
        seen = [
            torch.nn.functional.scaled_dot_product_attention(
                *(part[first:last].transpose(0, 1) for part in (query, key, value)),
                is_causal=window_size == (-1, 0),
            ).transpose(0, 1)
            for first, last in itertools.pairwise(cu_seq_q.tolist())
        ]
        return torch.cat(seen)

    known = set(inspect.signature(varlen.varlen_attn).parameters)
    assert set(inspect.signature(varlen_attn).parameters) <= known
    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    case = tiny(workload)
    values = initial_values(case.model.sizes, np.random.default_rng(1))
    side = pytorch_transformer.VarlenTransformer(case.model.sizes, values, "cpu")
    (padded,), _ = case.peers(["pytorch-padded"], "cpu")
    batch = case.data()[0]
    losses = [one.train(one.prepare(batch)) for one in (side, padded)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert called == [(-1, 0) if workload == "transformer" else (-1, -1)] * case.model.sizes.layers


def test_a_peer_that_fails_stops_no_other(cuda, torch, monkeypatch):
    from benchmarks.peers.pytorch_tagger import PackedTagger

    def forward(self, prepared):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(PackedTagger, "forward", forward)
    peers, missing = speed.usable(tiny("tagger"), "cpu")
    bucketed = [f"pytorch-bucketed-{precision}" for precision in cases.ROUNDED]
    assert [peer.name for peer in peers] == ["pytorch-padded", "pytorch-bucketed", *bucketed]
    packed = [cases.in_precision("pytorch-packed", name) for name in cases.precisions()]
    assert missing == dict.fromkeys(packed, "RuntimeError: no kernel")


def test_a_peer_multiplies_in_its_precision_and_puts_the_switches_back(torch, monkeypatch):
    """TF32 is a card's: here its switches are looked at, forward and back."""
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    seen = []

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            note()
            return x.clone()

        @staticmethod
        def backward(context, dx):
            note()
            return dx

    def note():
        on = [switch.allow_tf32 for switch in switches]
        seen.append((*on, torch.is_autocast_enabled("cpu")))

    before = [switch.allow_tf32 for switch in switches]
    for precision, forward, backward in (
        ("float32", (False, False, False), (False, False, False)),
        ("tf32", (True, True, False), (True, True, False)),
        ("bfloat16", (False, False, True), (False, False, False)),
    ):
        (peer,), _ = tiny("transformer").peers(["pytorch-padded"], "cpu", precision)
        compute = peer.forward
        monkeypatch.setattr(peer, "forward", lambda x, compute=compute: Loss.apply(compute(x)))
        prepared = peer.prepare(tiny("transformer").data()[0])
        peer.train(prepared)
        assert seen == [forward, backward]
        peer.loss(prepared)
        assert seen == [forward, backward, forward]
        assert [switch.allow_tf32 for switch in switches] == before
        seen.clear()


def test_overlapping_kernels_are_busy_once():
    kinds = {"name": "k", "ph": "X", "cat": "kernel"}
    events = [
        {**kinds, "ts": 10.0, "dur": 4.0},
        {**kinds, "ts": 11.0, "dur": 1.0},
        {**kinds, "ts": 13.0, "dur": 3.0, "name": "other"},
        {**kinds, "ts": 20.0, "dur": 2.0, "cat": "gpu_memcpy", "name": "copy"},
        {**kinds, "ts": 0.0, "dur": 99.0, "cat": "cuda_runtime"},
        {"ph": "M", "name": "process_name"},
    ]
    work = trace.summary(events)
    assert work.busy_seconds == pytest.approx(8e-6) and work.span_seconds == pytest.approx(12e-6)
    assert work.launches == 3
    assert work.longest[0] == ("k", pytest.approx(5e-6), 2)
    assert trace.summary(events[4:]) is None
