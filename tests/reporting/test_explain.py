from collections import deque

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import OutOfMemory
from dynbatch.kernels.backends import factors
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.runtime import compiling
from dynbatch.memory import Pool
from dynbatch.reporting import explain
from dynbatch.reporting.reasons import apart
from dynbatch.reporting.run_record import record_of


@pytest.fixture(autouse=True)
def with_c(monkeypatch):
    """The report has no line on missing C: `test_backends` tests that; nor one on compiling."""
    monkeypatch.setattr(library, "reason", lambda: "")
    monkeypatch.setattr(compiling, "_times", deque(maxlen=0))


def test_the_report_lists_what_ran_together():
    with db.Graph() as graph:
        for length in (2, 3):
            F.tanh(F.input(graph, [[1.0, 2.0]] * length))
        F.exp(F.input(graph, [1.0]))
        graph.forward()
        head, times, columns, *rows = graph.explain().splitlines()
    assert head.startswith("6 nodes in 3 batches (lower bound 3), 3 launches, 0 bytes copied, peak")
    assert times.startswith("kernels ") and " ms, host " in times
    assert columns.split()[:5] == ["step", "kind", "nodes", "rows", "width"]
    table = {row.split()[1]: row.split()[2:5] for row in rows}
    assert table == {
        "Input": ["3", "6", "mixed"],
        "Tanh": ["2", "5", "2"],
        "Exp": ["1", "1", "1"],
    }


def test_rounded_values_are_told_and_rounded_products_apart_from_those_in_float32():
    @db.cell
    def attending(x, h, p, memory):
        h = F.tanh(p(x) + F.attention(h, memory, memory))
        return h, h

    layer, told = models.Linear(4, 4, rng=0), {}
    for precision in ("float32", "bfloat16"):
        with db.Graph(precision=precision) as graph:
            x = F.input(graph, np.ones((3, 4), np.float32))
            outputs, _ = db.scan(attending, x, 4, layer, memory=x)
            y = layer(outputs)
            graph.backward(F.sum(y @ F.transpose(y)))
            told[precision] = graph.explain()
    how = factors("bfloat16")
    line = f"products: {how} in Scan, LinearMap; float32 in DotProductAttention, MatMul step"
    assert line in " ".join(told["bfloat16"].split())
    assert "\nvalues: rounded to bfloat16" in told["bfloat16"]
    assert "products:" not in told["float32"] and "values:" not in told["float32"]


def test_a_cell_with_dropout_is_inlined_and_its_operators_are_listed():
    @db.cell
    def dropped(x):
        return F.dropout(F.tanh(x), 0.5)

    @db.cell
    def kept(x):
        return F.tanh(x)

    with db.Graph() as graph:
        x = F.input(graph, [1.0])
        dropped(x), kept(x)
        graph.forward()
        kinds = [line.split()[1:4] for line in graph.explain().splitlines()[3:]]
    assert ["calls", "of", "kept"] in kinds
    assert {"Tanh", "InvertedDropout"} <= {kind[0] for kind in kinds}


def test_runs_follow_each_other():
    with db.Graph() as graph:
        x = F.input(graph, [1.0])
        _ = x.value
        _ = F.tanh(x).value
        assert [line.split()[1] for line in graph.explain().splitlines()[3:]] == ["Input", "Tanh"]


def test_a_graph_without_runs_has_an_empty_report():
    with db.Graph() as graph:
        assert graph.explain().startswith("0 nodes in 0 batches")


def test_below_the_table_stands_what_ran_apart():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        for k in range(6):
            F.elu(x, 0.5 + k)
        F.tanh(F.tanh(x))
        graph.forward()
    lines = graph.explain(full=True).splitlines()
    reasons = lines[lines.index("ran apart, and why:") + 1 :]
    assert reasons[:3] == [
        f"      Elu 1 / {other}: static attribute alpha differs: 0.5 / {alpha}"
        for other, alpha in ((2, 1.5), (3, 2.5), (4, 3.5))
    ]
    assert reasons[-1] == "      Tanh 7, 8: depends on each other"


def test_many_pairs_of_one_reason_are_one_line():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        for _ in range(6):
            models.Linear(2, 3)(x)
        F.elu(x, 0.5), F.elu(x, 1.5)
        graph.forward()
    told = graph.explain()
    assert told.count("two called") == told.count("LinearMap 1, 2, 3, 4, 5, 6: parameter") == 1
    assert "Elu 7 / 8: static attribute" in told


def test_the_hosts_share_is_of_host_and_kernels():
    with db.Graph() as graph:
        _ = F.tanh(F.input(graph, [1.0])).value
    statistics = graph.statistics
    share = statistics.host_seconds / (statistics.host_seconds + statistics.kernel_seconds)
    assert f"(share {share:.0%}; building not counted), mean batch 1.0 nodes" in graph.explain()


def test_the_record_of_a_step_has_its_times():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0]).keep()
        graph.backward(F.sum(F.tanh(x * x)))
    rows = {row.kind: row for row in graph._executor.rows()}
    assert [what for what, _, _ in rows["Tanh"].spans] == ["forward", "backward", "add gradients"]
    for row in rows.values():
        assert row.prepare_seconds > 0
        assert row.seconds + row.seconds_backward == pytest.approx(
            sum(end - begin for _, begin, end in row.spans)
        )
        assert all(begin <= end for _, begin, end in row.spans)


def test_a_run_that_failed_leaves_no_times():
    with db.Graph(pool=Pool(limit_bytes=4096)) as graph:
        with pytest.raises(OutOfMemory):
            _ = F.tanh(F.input(graph, np.ones((1000, 2)))).value
        assert graph.explain().startswith("0 nodes in 0 batches")
        assert record_of(graph._executor, 0.0).runs == []


def test_on_a_gpu_the_report_says_whose_times_it_gives(cuda):
    with db.Graph(device="cuda") as graph:
        _ = F.tanh(F.input(graph, [1.0])).value
    assert "host's times, no GPU is waited for" in graph.explain()


# Width -------------------------------------------------------------------------------------------


def tree_graph():
    """Calls of cells whose names are long, joined along trees of three sentences."""

    @db.cell
    def leaf_of_a_binary_constituency_tree(x, p):
        return F.tanh(F.linear(x, p[0]))

    @db.cell
    def two_children_of_a_binary_constituency_tree(left, right, p):
        return F.tanh(F.linear(left, p[1]) + F.linear(right, p[2]))

    weights = [db.Parameter(np.full((8, 8), 0.1, "float32"), f"tree.weights.{k}") for k in range(3)]
    graph = db.Graph()
    with graph:
        losses = []
        for length in (1, 4, 7):
            words = F.input(graph, np.ones((length, 8)))
            states = [leaf_of_a_binary_constituency_tree(words[k], weights) for k in range(length)]
            while len(states) > 1:
                right, left = states.pop(), states.pop()
                joined = two_children_of_a_binary_constituency_tree(left, right, weights)
                states.append(F.relu(joined))
            losses.append(F.sum(states[0]))
        graph.backward(F.mean(losses))
    return graph


def transformer_graph():
    model = models.TransformerEncoder(2, 16, 4, dropout=0.0)
    graph = db.Graph()
    with graph:
        lengths = (5, 2, 9)
        states = [model(F.input(graph, np.ones((length, 16)))) for length in lengths]
        graph.backward(F.mean([F.sum(state) for state in states]))
    return graph


def many_reasons_graph():
    graph = db.Graph()
    with graph:
        x = F.input(graph, np.ones(4))
        for k in range(40):
            name = f"a_layer_with_a_name_of_many_words.and_a_number_{k}.weight"
            F.elu(F.linear(x, db.Parameter(np.ones((2 + k % 3, 4), "float32"), name)), 0.1 + k)
        graph.forward()
    return graph


@pytest.mark.parametrize("make", [tree_graph, transformer_graph, many_reasons_graph])
def test_no_line_is_wider_than_100_columns(make):
    graph = make()
    lines = graph.explain().splitlines()
    assert max(map(len, lines)) <= 100
    assert max(map(len, lines)) > 80  # else the graph tests nothing


def test_a_kind_that_is_cut_stands_below_the_table_in_full():
    lines = tree_graph().explain().splitlines()
    full = "calls of leaf_of_a_binary_constituency_tree"
    assert any("calls of" in line and "…" in line for line in lines)
    assert any(full in line and line.lstrip()[0].isdigit() for line in lines)


def test_the_report_counts_the_reasons_that_it_leaves_out():
    pairs = len(apart(record_of(many_reasons_graph()._executor, 0.0)))
    lines = many_reasons_graph().explain().splitlines()
    assert lines[-1] == f"      {pairs - 6} more reasons: explain(full=True)"
    full = many_reasons_graph().explain(full=True).splitlines()
    reasons = full[full.index("ran apart, and why:") + 1 :]
    assert sum([line.startswith(("      Elu", "      LinearMap")) for line in reasons]) == pairs


# Length ------------------------------------------------------------------------------------------


def read_in_the_loop_graph(sentences=200):
    graph = db.Graph()
    layer = models.Linear(2, 2)
    with graph:
        for length in range(sentences):
            _ = F.sum(F.tanh(layer(F.input(graph, np.ones((1 + length % 7, 2)))))).value
    return graph


def deep_graph():
    layers = [models.TransformerEncoderLayer(8, 2, 16, dropout=0.0) for _ in range(3)]
    graph = db.Graph()
    with graph:
        for length in (3, 5):
            h = F.input(graph, np.ones((length, 8))).named(f"sentence of {length}")
            for number, layer in enumerate(layers):
                h = layer(h).named(f"{number} of {length}")
        graph.forward()
    return graph


@pytest.mark.parametrize(
    "make", [read_in_the_loop_graph, tree_graph, deep_graph, many_reasons_graph]
)
def test_a_report_fits_a_screen_and_the_full_one_has_a_line_for_each_batch(make):
    graph = make()
    assert len(graph.explain().splitlines()) <= 40
    lines = graph.explain(full=True).splitlines()
    begin = next(number for number, line in enumerate(lines) if line.split()[0] == "step")
    rows = lines[begin + 1 :][: len(graph._record().rows)]
    assert [line.split()[0] for line in rows] == [str(number) for number in range(len(rows))]
    assert len(rows) > 16 or make is tree_graph


def test_batches_of_one_signature_share_a_line_with_their_sums():
    lines = read_in_the_loop_graph(40).explain().splitlines()
    rows = [line.split()[:7] for line in lines if "×40" in line]
    rows_in_all = str(sum(1 + length % 7 for length in range(40)))
    assert rows == [
        ["0", "×40", "Input", "40", rows_in_all, "2", "0"],
        ["1", "×40", "LinearMap", "40", rows_in_all, "2", "0"],
        ["2", "×40", "Tanh", "40", rows_in_all, "2", "0"],
        ["3", "×40", "Sum", "40", "40", "1", "0"],
    ]


def test_more_kinds_than_lines_are_those_of_most_time_and_the_number_of_the_others(monkeypatch):
    monkeypatch.setattr(explain, "SHOWN", 2)
    with db.Graph() as graph:
        F.exp(F.tanh(F.sigmoid(F.input(graph, [1.0]))))
        graph.forward()
    lines = graph.explain().splitlines()
    assert "      2 batches of 2 other kinds, which took less time" in lines
    table = lines[[line.split()[0] for line in lines].index("step") + 1 :]
    assert [line.split()[0].isdigit() for line in table] == [True, True, True, False]


@pytest.mark.parametrize("width", [5, 6])
def test_a_long_kind_loses_its_middle_alone(width):
    assert explain._cut("abcdef", 6) == "abcdef"
    assert explain._cut("abcdefgh", width) == {5: "ab…gh", 6: "abc…gh"}[width]
