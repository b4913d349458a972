"""The user's project that is checked in strict types also runs."""

from tests.user_project.training import (
    bytes_and_loss,
    sentences,
    steps_until_settled,
    trained,
    written,
)


def test_the_project_trains_measures_decides_and_generates(tmp_path):
    data = sentences()
    model, result = trained(tmp_path, data)
    assert (result.step, result.epoch) == (6, 3)
    peak, loss = bytes_and_loss(model, data)
    assert peak > 1000 and 0 < loss < 20
    assert len(steps_until_settled(model, data)) == len(data)
    assert [len(tokens) for tokens in written()] == [5, 5]
