"""The command, on networks small enough for a test."""

import json
from functools import partial

import numpy as np
import pytest

from benchmarks import run
from benchmarks.lengths import Corpus
from benchmarks.measure import require_agreement
from benchmarks.networks import (
    BertLayerSizes,
    CnnSizes,
    Seq2SeqSizes,
    TaggerSizes,
    TransformerSizes,
    TreeSizes,
    initial_values,
)
from benchmarks.peers import CNN_PEERS, MODES, TRANSFORMER_PEERS, TREE_PEERS
from benchmarks.workloads import WORKLOADS, Workload
from benchmarks.workloads.cnn import DynbatchCnn
from benchmarks.workloads.contender import StepCost, median_cost
from benchmarks.workloads.seq2seq import DynbatchSeq2Seq
from benchmarks.workloads.steps import StepSeq2Seq, StepTagger
from benchmarks.workloads.tagger import DynbatchTagger
from benchmarks.workloads.transformer import DynbatchTransformer
from benchmarks.workloads.tree import DynbatchTree
from benchmarks.workloads.tree_by_hand import HandBatchedTree
from benchmarks.workloads.user_cell import FourMatrixTagger, UserCellTagger
from tests.cuda import devices

TAGGER = TaggerSizes(vocabulary=30, embedding=6, hidden=5, tags=4)
SEQ2SEQ = Seq2SeqSizes(source_vocabulary=30, target_vocabulary=20, embedding=6, hidden=5)
CNN = CnnSizes(vocabulary=30, embedding=6, hidden=5, classes=3)
TREE = TreeSizes(vocabulary=30, embedding=6, hidden=5, classes=3)
SMALL = {
    "tagger": Workload(TAGGER, DynbatchTagger),
    "seq2seq": Workload(SEQ2SEQ, DynbatchSeq2Seq),
    "user_cell": Workload(
        TAGGER, UserCellTagger, frameworks=(), rivals={"models-lstm": DynbatchTagger}
    ),
    "cnn": Workload(CNN, DynbatchCnn, frameworks=CNN_PEERS),
    "tree": Workload(
        TREE, DynbatchTree, frameworks=TREE_PEERS, rivals={"by-hand": HandBatchedTree}
    ),
}
for name, sizes in (
    ("transformer", TransformerSizes(30, 8, 12, 2, 1)),
    ("bert_layer", BertLayerSizes(30, 8, 12, 2, 1, 4)),
):
    SMALL[name] = Workload(sizes, DynbatchTransformer, frameworks=TRANSFORMER_PEERS, batch=5)
QUICK = ["--batch", "8", "--rounds", "1", "--batches", "1", "--threads", "1"]
KEYS = [
    "workload",
    "batch",
    "threads",
    "device",
    "versions",
    "dynbatch_ms",
    "peers_ms",
    "host_share",
]
KEYS += [
    "launches",
    "nodes_per_sentence",
    "tokens",
    "batches",
    "lower_bound",
    "host_us_per_cell",
    "copied_bytes",
    "peak_bytes",
    "flops_per_second",
    "product_flops_per_second",
    "copied_bytes_per_second",
    "shares_of_limit",
    "compile_seconds",
]


pytestmark = pytest.mark.usefixtures("same_threads")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(run, "WORKLOADS", SMALL)


@pytest.mark.parametrize("workload", ["tagger", "seq2seq"])
def test_json_alone_goes_to_standard_output(small, capsys, workload):
    pytest.importorskip("torch", reason="the peers are PyTorch's")
    peers = ["--peers", "pytorch-packed", "pytorch-bucketed"]
    assert run.main([workload, "--json", *QUICK, *peers]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert list(found) == KEYS
    assert found["workload"] == workload and found["batch"] == 8 and found["threads"] == 1
    ran = {name for name, ms in found["peers_ms"].items() if ms is not None}
    assert ran == {"pytorch-packed", "pytorch-bucketed"}
    assert found["dynbatch_ms"] > 0 and 0 < found["host_share"] < 1
    assert found["launches"] >= found["batches"] > 0
    assert found["flops_per_second"] > 0 and all(found["product_flops_per_second"].values())
    assert found["shares_of_limit"].keys() == ran | {"dynbatch"}
    assert found["nodes_per_sentence"] > 1 and 8 * 3 <= found["tokens"] <= 8 * 80
    assert "checked with pytorch-packed, pytorch-bucketed" in printed.err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, of its compiler
def test_bucketed_pytorch_is_timed_compiled_and_under_autocast_on_request(
    small, capsys, monkeypatch
):
    torch = pytest.importorskip("torch", reason="the peers are PyTorch's")
    traced_only = partial(torch.compile, backend="eager")  # C++ of each shape takes long
    monkeypatch.setattr(torch, "compile", traced_only)
    modes = [f"pytorch-bucketed-{mode}" for mode in MODES]
    assert run.main(["transformer", *QUICK, "--peers", "pytorch-bucketed", *modes]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].endswith("compiling, s")
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:8]}
    assert list(rows) == ["dynbatch", *modes, "pytorch-bucketed"]
    is_compiled = [len(row) == 7 for row in rows.values()]
    assert is_compiled == [False, True, False, True, False]


def test_trees_report_what_the_host_takes_a_cell_and_the_fewest_batches(small, capsys):
    pytest.importorskip("torch", reason="the peers are PyTorch's")
    peers = ["pytorch-levels", "pytorch-nodes", "by-hand"]
    assert run.main(["tree", "--json", *QUICK, "--peers", *peers]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert {name for name, ms in found["peers_ms"].items() if ms is not None} == set(peers)
    assert found["batches"] >= found["lower_bound"] > 0 and found["host_us_per_cell"] > 0
    assert "nodes, the highest tree" in printed.err and "µs a cell node" in printed.err


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize(
    ("workload", "lengths"), [("transformer", "lognormal"), ("bert_layer", "equal")]
)
def test_transformers_run_beside_four_forms_of_pytorch(small, capsys, workload, lengths):
    pytest.importorskip("torch", reason="the peers are PyTorch's")
    options = [workload, "--json", *QUICK[2:], "--lengths", lengths, "--heads", "4"]
    assert run.main(options) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert list(found["peers_ms"]) == list(TRANSFORMER_PEERS)
    assert all(ms > 0 for ms in found["peers_ms"].values())
    assert found["batch"] == 5 and f"lengths {lengths}" in printed.err


def test_the_cnn_runs_beside_padded_and_bucketed_pytorch(small, capsys):
    pytest.importorskip("torch", reason="the peers are PyTorch's")
    assert run.main(["cnn", "--json", *QUICK]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert list(found["peers_ms"]) == list(CNN_PEERS)
    assert all(ms > 0 for ms in found["peers_ms"].values())
    assert "checked with pytorch-padded, pytorch-bucketed" in printed.err
    assert found["nodes_per_sentence"] > 10 and "(1." in printed.err  # cells a token, bucketed


def test_dynbatch_with_rounded_factors_stands_beside_itself(small, capsys):
    assert run.main(["tagger", "--json", *QUICK, "--peers", "dynbatch-bfloat16"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peers_ms"]["dynbatch-bfloat16"] > 0
    rates, shares = found["product_flops_per_second"], found["shares_of_limit"]
    for name, ms, precision in (
        ("dynbatch", found["dynbatch_ms"], "float32"),
        ("dynbatch-bfloat16", found["peers_ms"]["dynbatch-bfloat16"], "bfloat16"),
    ):
        flops = shares[name] * ms * rates[precision]
        assert flops == pytest.approx(
            shares["dynbatch"] * found["dynbatch_ms"] * rates["float32"], rel=0.05
        )


def test_the_table_needs_no_peer(small, capsys):
    assert run.main(["user_cell", *QUICK, "--peers"]) == 0
    assert "dynbatch" in capsys.readouterr().out


@pytest.mark.parametrize("workload", ["tagger", "user_cell"])
def test_the_table_on_a_gpu_counts_what_is_queued_as_the_hosts(small, cuda, capsys, workload):
    assert run.main([workload, "--device", "cuda", "--json", *QUICK, "--peers"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["device"] == "cuda" and 0 < found["host_share"] <= 1 and found["launches"] > 10
    assert "1 threads, on cuda" in printed.err and "card       " in printed.err


def test_a_rival_that_cannot_run_there_is_left_out_with_the_reason():
    def refuses(sizes, values, device):
        return HandBatchedTree(sizes, values, "cuda")

    model = Workload(TREE, DynbatchTree, frameworks=(), rivals={"by-hand": refuses})
    _, peers, skipped = model.build(np.random.default_rng(1), None, threads=1)
    assert not peers and skipped == {"by-hand": "it is written for the CPU."}


def test_without_a_gpu_the_command_says_so(small, capsys):
    if devices.has_gpu():
        pytest.skip("there is one")
    assert run.main(["tagger", "--device", "cuda", *QUICK, "--peers"]) == 2
    assert "CUDA is not available" in capsys.readouterr().err


def test_the_width_of_the_networks_is_an_option(monkeypatch, capsys):
    seen = []

    class Noted(DynbatchTagger):
        def __init__(self, sizes, values, device="cpu"):
            seen.append(sizes.hidden)
            super().__init__(sizes, values, device)

    monkeypatch.setattr(run, "WORKLOADS", {"tagger": Workload(TAGGER, Noted)})
    assert run.main(["tagger", "--hidden", "3", *QUICK, "--peers"]) == 0
    assert seen == [3]


def test_own_cells_compute_what_the_library_lstm_computes():
    rng = np.random.default_rng(1)
    values = initial_values(TAGGER, rng)
    ours, *others = [
        make(TAGGER, values) for make in (DynbatchTagger, UserCellTagger, FourMatrixTagger)
    ]
    batch = Corpus(30, 4, is_aligned=True).random_batches(rng, 1, 7)[0]
    require_agreement(ours, others, batch, tolerance=1e-5)


@pytest.mark.parametrize(
    ("sizes", "step_by_step", "scanned"),
    [(TAGGER, StepTagger, DynbatchTagger), (SEQ2SEQ, StepSeq2Seq, DynbatchSeq2Seq)],
)
def test_models_step_by_step_have_the_gradients_of_their_scans(sizes, step_by_step, scanned):
    rng = np.random.default_rng(1)
    values = initial_values(sizes, rng)
    ours, scan = step_by_step(sizes, values), scanned(sizes, values)
    batch = Workload(sizes, step_by_step).corpus(0.59).random_batches(rng, 1, 3)[0]
    loss, gradients = ours.gradients(batch)
    expected_loss, expected = scan.gradients(batch)
    assert loss == pytest.approx(expected_loss)
    for name, gradient in expected.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-6, atol=1e-9, err_msg=name)


def test_a_model_that_computes_something_else_ends_the_command(monkeypatch, capsys):
    class Doubled(DynbatchTagger):
        def sentence_loss(self, graph, source, target):
            return 2.0 * super().sentence_loss(graph, source, target)

    rivals = {"models-lstm": DynbatchTagger}
    broken = Workload(TAGGER, Doubled, frameworks=(), rivals=rivals)
    monkeypatch.setattr(run, "WORKLOADS", {"tagger": broken})
    assert run.main(["tagger", *QUICK]) == 1
    assert "models-lstm and dynbatch do not compute the same" in capsys.readouterr().err


def test_a_size_below_one_is_a_usage_error(capsys):
    with pytest.raises(SystemExit):
        run.parse(["tagger", "--batch", "0"])
    assert "at least 1 is needed, got 0" in capsys.readouterr().err


def test_the_workloads_have_the_sizes_that_the_readme_states():
    assert WORKLOADS["tagger"].sizes == TaggerSizes(10_000, 128, 256, 45)
    assert WORKLOADS["user_cell"].sizes == TaggerSizes(10_000, 128, 256, 45)
    assert WORKLOADS["tree"].sizes == TreeSizes(10_000, 300, 150, 5)
    assert WORKLOADS["seq2seq"].sizes == Seq2SeqSizes(8_000, 8_000, 256, 256)
    assert WORKLOADS["bert_layer"].sizes == BertLayerSizes(1_000, 768, 3_072, 12, 1, 45)
    assert WORKLOADS["bert_layer"].batch == 32


def test_host_share_is_what_neither_kernels_nor_update_used():
    cost = StepCost(10.0, 8.0, 1.0, launches=3, batches=2, copied_bytes=4, peak_bytes=5)
    assert cost.host_share == pytest.approx(0.1)
    assert median_cost([cost])["launches"] == 3
