import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import OutOfMemory
from dynbatch.kernels.c.runtime import library
from dynbatch.memory import Pool


@pytest.fixture(autouse=True)
def with_c(monkeypatch):
    """The report has no line on missing C: `test_backends` tests that."""
    monkeypatch.setattr(library, "reason", lambda: "")


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


def test_beside_each_batch_stands_what_ran_apart():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        for k in range(6):
            F.elu(x, 0.5 + k)
        F.tanh(F.tanh(x))
        graph.forward()
    lines = graph.explain().splitlines()[3:]
    assert lines[1].endswith(
        "  2: static attribute alpha differs: 0.5 / 1.5; 3: static attribute alpha differs: "
        "0.5 / 2.5; 4: static attribute alpha differs: 0.5 / 3.5"
    )
    assert lines[4].endswith("; 2 more")
    assert lines[7].split()[1] == "Tanh" and "apart" not in lines[7]
    assert lines[8].endswith("  7: depends on each other")


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
        assert graph._executor.record(0.0).runs == []


def test_on_a_gpu_the_report_says_whose_times_it_gives(cuda):
    with db.Graph(device="cuda") as graph:
        _ = F.tanh(F.input(graph, [1.0])).value
    assert "host's times, no GPU is waited for" in graph.explain()
