"""`backends()`, and what `explain()` says where C is not used."""

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.kernels.c.runtime import library


def explained() -> str:
    with db.Graph() as graph:
        F.mean(F.input(graph, [1.0, 2.0])).value  # noqa: B018
        return graph.explain()


def test_backends_tell_why_c_is_off(monkeypatch) -> None:
    monkeypatch.setattr(library, "reason", lambda: "no C compiler: install gcc")
    assert db.backends()["c"] == "off: no C compiler: install gcc"
    assert "NumPy runs in place of C kernels" in explained()


def test_explain_is_silent_where_c_runs(monkeypatch) -> None:
    monkeypatch.setattr(library, "reason", lambda: "")
    assert "C kernels" not in explained()


def test_every_backend_has_a_sentence() -> None:
    assert sorted(db.backends()) == ["c", "cuda", "numpy"]
    assert all(db.backends().values())
