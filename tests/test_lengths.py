"""The table of docs/guides/lengths.md, row by row."""

import re
from pathlib import Path

import numpy as np
import pytest

import dynbatch as db
from dynbatch import errors
from dynbatch import nodes as F

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "lengths.md"
ROWS = re.findall(r"^\| `(.+?)` \| `(.+?)` \|", PAGE.read_text("utf-8"), re.M)


@pytest.mark.parametrize(("expression", "stated"), ROWS, ids=[row[0] for row in ROWS])
def test_a_sentence_without_tokens_gives_what_the_documentation_says(expression, stated):
    table = db.Parameter(np.ones((5, 3), np.float32))
    weight = db.Parameter(np.ones((3, 3), np.float32))
    vector = db.Parameter(np.ones(3, np.float32))
    with db.Graph() as graph:
        names = {"F": F, "graph": graph, "table": table, "weight": weight, "inf": np.inf}
        names["vector"] = vector
        names["x"] = F.input(graph, np.zeros((0, 3)))
        names["query"] = F.input(graph, np.ones(3))
        if stated.endswith("Error"):
            with pytest.raises(getattr(errors, stated)):
                eval(expression, names)
            return
        found, expected = eval(expression, names).value, eval(stated, names)
        if isinstance(expected, tuple):
            assert found.shape == expected
        else:
            assert found.tolist() == expected


def test_the_table_is_read():
    assert len(ROWS) > 30


@pytest.mark.parametrize("expression", [row[0] for row in ROWS if not row[1].endswith("Error")])
def test_it_changes_no_other_sentence_and_gets_a_gradient(expression):
    table = db.Parameter(np.ones((5, 3), np.float32))
    weight = db.Parameter(np.ones((3, 3), np.float32))
    vector = db.Parameter(np.ones(3, np.float32))

    def gradient(*lengths):
        with db.Graph(seed=0) as graph:
            losses = []
            for length in lengths:
                x = F.input(graph, np.arange(3.0 * length).reshape(length, 3) / 10).keep()
                names = {"F": F, "graph": graph, "table": table, "weight": weight, "x": x}
                names["query"] = F.input(graph, np.ones(3))
                names["vector"] = vector
                if length:
                    other = x
                    losses.append(F.sum(F.softmax(x) * x))
                else:
                    y = eval(expression, names)
                    losses.append(F.sum(F.clip(y, -1.0, 1.0)))
            graph.backward(F.sum(losses))
            return other.gradient

    assert gradient(2, 0, 0).tolist() == gradient(2).tolist()
