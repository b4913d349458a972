"""A few of the seeds of `fuzz_checkpoints`: twice every damage, to both kinds of checkpoint."""

import pytest

from dynbatch import random
from tests.train import fuzz_checkpoints
from tests.train.fuzz_checkpoints import DAMAGES, WITHOUT_DIGESTS

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("same_threads")
def test_damaged_checkpoints_are_refused_or_load_what_was_saved(tmp_path):
    before = random.get_state()
    found = fuzz_checkpoints.run(range(4 * len(DAMAGES)), tmp_path)
    random.set_state(before)
    assert found.failures == []
    refused = {damage for damage, answer in found.answers if answer == "refused"}
    assert refused == {damage.__name__ for damage in DAMAGES}


def test_the_fuzzer_would_find_tensors_that_load_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr("dynbatch.train.checkpoint_file.array_digest", lambda array: "")
    found = fuzz_checkpoints.run(range(2 * len(DAMAGES)), tmp_path)
    assert any("loaded other values of" in failure for failure in found.failures)
    blamed = {failure.split(", ")[1] for failure in found.failures}
    assert not blamed & {damage.__name__ for damage in WITHOUT_DIGESTS}
