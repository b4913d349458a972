"""Names of nodes: `x.named("h")`, and `graph["h"]` finds the node."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, GraphError, NumericError, ShapeError
from dynbatch.testing import load_graph


@db.cell
def step(x, h):
    h = F.tanh(x + h)
    return h, h


def test_a_name_finds_the_node_and_changes_nothing_else():
    def build(graph, named):
        x = F.input(graph, [[1.0, 2.0]] * 3)
        h = F.tanh(x)
        if named:
            assert h.named("h") is h
        return F.sum(h * h)

    with db.Graph() as graph, db.Graph() as plain:
        loss, other = build(graph, True), build(plain, False)
        assert graph["h"].value.shape == (3, 2)
        assert loss.value == other.value
        assert "h" in graph and "x" not in graph and 3 not in graph
        assert str(graph.plans[0]) == str(plain.plans[0])


def test_nodes_without_a_name_leave_no_entry():
    with db.Graph() as graph:
        F.tanh(F.input(graph, [1.0]))
        assert graph.names == {}


def test_calls_their_parts_and_rows_have_names_too():
    with db.Graph() as graph:
        x = F.input(graph, [[1.0, 2.0], [3.0, 4.0]])
        call = step(x[1].named("row"), F.input(graph, [0.0, 0.0])).named("call")
        h, _ = call
        h.named("state")
        assert graph["row"].value.tolist() == [3, 4]
        assert graph["call"] is call and graph["state"] is h
        assert graph["state"].label() == f'{call.label()}[0] "state"'
        assert call.label() == f'step #{call.index} "call"'


def test_a_second_node_of_one_name_is_refused_and_the_first_stays():
    with db.Graph() as graph:
        x = F.input(graph, [1.0]).named("x")
        with pytest.raises(
            ArgumentError, match=r'Input #0 "x" \(1,\) has the name already'
        ) as said:
            F.tanh(x).named("x")
        assert "a name belongs to one node of a graph" in str(said.value)
        assert 'x.named(f"x {number}")' in str(said.value)
        assert graph["x"] is x


def test_a_second_name_of_one_node_is_refused_and_the_same_again_is_not():
    with db.Graph() as graph:
        x = F.input(graph, [1.0]).named("x")
        assert x.named("x") is x
        with pytest.raises(ArgumentError, match="a node has one name"):
            x.named("y")
        assert "y" not in graph
        assert F.tanh(x).named("y") is graph["y"]


@pytest.mark.parametrize("name", ["", 3, None, b"x"])
def test_what_is_not_a_text_is_refused(name):
    with db.Graph() as graph:
        with pytest.raises(ArgumentError, match="rule: a text"):
            F.input(graph, [1.0]).named(name)


def test_an_unknown_name_is_answered_by_the_nearest():
    with db.Graph() as graph:
        for name in ("hidden", "hidden 2", "loss"):
            F.input(graph, [1.0]).named(name)
        with pytest.raises(ArgumentError, match="names like it: 'hidden', 'hidden 2'"):
            graph["hiden"]
        with pytest.raises(ArgumentError, match="its names: 'hidden', 'hidden 2', 'loss'"):
            graph["zzz"]
        with pytest.raises(ArgumentError, match=r"graph.nodes\[index\]"):
            graph[0]
        with pytest.raises(TypeError, match="'Graph' object is not iterable"):
            list(graph)
    with db.Graph() as graph, pytest.raises(ArgumentError, match="none of its nodes has a name"):
        graph["h"]


def test_many_names_are_not_all_listed():
    with db.Graph() as graph:
        for number in range(20):
            F.input(graph, [1.0]).named(f"h{number}")
        with pytest.raises(ArgumentError, match="'h11', …\n"):
            graph["loss of all"]


def test_errors_and_drawings_say_the_name():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0]).named("query")
        with pytest.raises(ShapeError, match='a  Input #0 "query"'):
            x + F.input(graph, [1.0, 2.0, 3.0])
        assert 'Input #0 \\"query\\" (2,)' in graph.to_dot()
    with db.Graph(guard=True) as graph:
        with np.errstate(all="ignore"), pytest.raises(NumericError, match='Log #1 "logs"'):
            _ = F.log(F.input(graph, [-1.0])).named("logs").value


def test_explain_says_the_names_of_each_batch(tmp_path):
    twice = db.block(lambda x: F.tanh(x) * 2.0)
    with db.Graph() as graph:
        for number in range(8):
            x = F.input(graph, [[1.0, 2.0]] * 2)
            F.exp(x).named(f"e{number}")
        twice(x).named("<block>")
        h, _ = step(x[0], x[1])
        h.named("state")
        graph.forward()
    lines = graph.explain(html=tmp_path / "page.html").splitlines()
    assert [line.strip() for line in lines if "named" in line] == [
        '1  named "e0", "e1", "e2", "e3", "e4", "e5", … 2 more',
        '2, 4  named "<block>"',
        '3  named "state"',
    ]
    kinds = [line.split()[1] for line in lines if line.split()[0].isdecimal()]
    assert kinds[1:6] == ["Input", "Exp", "lambda:", "calls", "lambda:"]
    page = (tmp_path / "page.html").read_text()
    assert "named &quot;state&quot;" in page and "named &quot;&lt;block&gt;&quot;" in page


def test_a_dumped_graph_keeps_its_names(tmp_path):
    both = db.block(lambda x: (F.tanh(x), F.tanh(x) * 2.0))
    with db.Graph() as graph:
        x = F.input(graph, [[1.0, 2.0]]).named("x").keep()
        y, z = both(x)
        y.named("y"), z.named("z")
        call = step(x[0].named("row"), z[0]).named("call")
        graph.backward(F.sum(call[0].named("state")))
        graph.dump(tmp_path / "graph.npz")
        names = [graph[name].shapes for name in graph.names.values()]
    with load_graph(tmp_path / "graph.npz") as loaded:
        found = loaded.graph.names.values()
        assert sorted(found) == ["call", "row", "state", "x", "y", "z"]
        loaded.run()
        assert [loaded.graph[name].shapes for name in ("x", "y", "z")] == names[:3]
        assert loaded.graph["z"].label() == f'Scale #{loaded.graph["z"].index} "z"'


def test_a_cell_names_nothing_inside_it():
    @db.cell
    def naming(x, h):
        return F.tanh(x + h).named("inside"), h

    with db.Graph() as graph:
        x, h = F.input(graph, [1.0, 2.0]), F.input(graph, [0.0, 0.0])
        with pytest.raises(GraphError, match=r"named\('inside'\) inside a cell"):
            naming(x, h)


def test_a_block_that_names_a_node_inside_is_inlined():
    @db.block
    def layer(x):
        return F.tanh(x).named("inside") * 2.0

    with db.Graph() as graph:
        y = layer(F.input(graph, [[1.0, 2.0]]))
        assert np.allclose(2 * graph["inside"].value, y.value)
        assert "it names a node that lies inside it" in graph.explain()


def test_a_closed_graph_has_no_names():
    with db.Graph() as graph:
        x = F.input(graph, [1.0]).named("x").keep()
        graph.forward()
    with pytest.raises(GraphError, match="node 'x': the graph is closed"):
        graph["x"]
    with pytest.raises(GraphError, match="named: the graph is closed"):
        x.named("y")
    assert x.value.tolist() == [1]
