import dynbatch as db
from dynbatch import nodes as F


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


def test_runs_follow_each_other():
    with db.Graph() as graph:
        x = F.input(graph, [1.0])
        _ = x.value
        _ = F.tanh(x).value
        assert [line.split()[1] for line in graph.explain().splitlines()[3:]] == ["Input", "Tanh"]


def test_a_graph_without_runs_has_an_empty_report():
    with db.Graph() as graph:
        assert graph.explain().startswith("0 nodes in 0 batches")
