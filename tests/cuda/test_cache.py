import pytest

from tests.cuda.cache import built


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Writes "made"; `calls` are the paths that it was given."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def write(out, work):
        write.calls.append(out)
        assert out.parent == work
        out.write_text("made")

    write.calls = []
    return write


def test_a_file_is_made_once_of_the_same_texts_and_anew_of_others(make):
    paths = {built("x-{}/y.txt", texts, make) for texts in (["a", "b"], ["a", "b"], ["ab"])}
    assert len(paths) == len(make.calls) == 2
    assert {path.read_text() for path in paths} == {"made"}
    assert {path.name for path in paths} == {"y.txt"}


def test_a_failure_leaves_nothing_and_is_tried_again(make, tmp_path):
    def fail(out, work):
        make(out, work)
        raise SyntaxError("no")

    for _ in range(2):
        with pytest.raises(SyntaxError):
            built("z-{}", ["a"], fail)
    assert len(make.calls) == 2
    assert built("z-{}", ["a"], make).read_text() == "made"
    assert len(list((tmp_path / "dynbatch-simulator").glob("z-*"))) == 1
