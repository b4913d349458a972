"""Every test of calls runs on both devices: graphs and parameters that it makes are there.

`make test-cuda` tries a fifth of them on a GPU; the others are `exhaustive`.
"""

from zlib import crc32

import pytest

import dynbatch as db


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        if given.get("place") == "cuda":
            item.add_marker(pytest.mark.cuda)
            if crc32(item.nodeid.encode()) % 5:
                item.add_marker(pytest.mark.exhaustive)


@pytest.fixture(autouse=True, params=["cpu", "cuda"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device of graphs that do not name one, and of new parameters."""
    if request.param == "cuda":
        request.getfixturevalue("cuda")
        defaults = db.Graph.__init__.__defaults__
        monkeypatch.setattr(db.Graph.__init__, "__defaults__", ("cuda", *defaults[1:]))
        made = db.Parameter.__init__

        def made_there(self, *arguments, **named):
            made(self, *arguments, **named)
            self.to("cuda")

        monkeypatch.setattr(db.Parameter, "__init__", made_there)
    return str(request.param)
