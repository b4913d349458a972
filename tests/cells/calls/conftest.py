"""Every test of calls runs on both devices: graphs and parameters that it makes are there.

`make test-cuda` tries a fifth of them on a GPU; the others are `exhaustive`.
"""

from zlib import crc32

import pytest

import dynbatch as db


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for call in metafunc._calls:
        if call.params.get("place") == "cuda":
            call.marks.append(pytest.mark.cuda.mark)
            if crc32(f"{metafunc.definition.nodeid}[{call.id}]".encode()) % 5:
                call.marks.append(pytest.mark.exhaustive.mark)


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
