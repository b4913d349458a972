"""The fixtures are small, and each says what its model gives."""

import numpy as np
import pytest

from tests.models.pretrained import fixtures

NAMES = sorted(path.name for path in fixtures.FOLDER.iterdir())


def test_a_fixture_takes_200_kilobytes_at_most_and_all_take_1_8_megabytes():
    sizes = {
        name: sum(path.stat().st_size for path in (fixtures.FOLDER / name).iterdir())
        for name in NAMES
    }
    assert max(sizes.values()) <= 200_000 and sum(sizes.values()) <= 1_800_000


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_has_sentences_of_several_lengths_and_values_that_tell_them_apart(name):
    found = fixtures.sentences(name)
    assert [len(sentence["input_ids"]) for sentence in found] == [7, 1, 26, 3]
    for sentence in found:
        value = sentence.get("logits", sentence["hidden"])
        assert value.dtype == np.float32 and value.std() > 0.1
