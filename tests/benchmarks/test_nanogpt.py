"""The recipe of nanoGPT: both sides compute the same model, update for update."""

import numpy as np
import pytest

from benchmarks.nanogpt import Recipe, Text, compare, sides_of, validation_loss
from tests.torch_parity import import_torch

SMALL = Recipe(layers=2, heads=2, width=8, block=6, batch=3, iterations=20, warmup=4, seed=1)


def made_up():
    rng = np.random.default_rng(0)
    return Text.of("".join(rng.choice(list("abcde \n"), 400)))


def test_both_sides_have_the_same_losses_after_the_same_updates(capsys):
    import_torch()
    text = made_up()
    sides = sides_of(SMALL, text.num_characters)
    before = {name: validation_loss(side, text, SMALL) for name, side in sides.items()}
    rows = compare(sides, text, SMALL)
    assert before["dynbatch"] == pytest.approx(before["PyTorch"], rel=1e-5)
    ours, theirs = rows["dynbatch"], rows["PyTorch"]
    assert ours.training_loss == pytest.approx(theirs.training_loss, rel=1e-4)
    assert ours.validation_loss == pytest.approx(theirs.validation_loss, rel=1e-4)
    assert abs(ours.validation_loss - before["dynbatch"]) > 1e-3
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_the_validation_loss_is_the_mean_over_whole_blocks():
    text = made_up()

    class Counting:
        def loss(self, blocks):
            assert blocks.shape[1] == SMALL.block + 1
            return float(blocks[:, 1:].mean())

        def train(self, blocks, lr):
            raise AssertionError

    whole = text.validation[1 : 1 + (len(text.validation) - 1) // 6 * 6]
    assert validation_loss(Counting(), text, SMALL) == pytest.approx(whole.mean())


def test_the_rate_warms_up_to_the_peak_and_falls_to_a_tenth():
    recipe = Recipe()
    rates = [recipe.rate(k) for k in range(recipe.iterations)]
    assert max(rates) == rates[100] == 1e-3 and rates[0] == pytest.approx(1e-3 / 101)
    assert rates[-1] == pytest.approx(1e-4, rel=1e-3)


def test_blocks_come_from_the_training_part_alone():
    text = made_up()
    rng = np.random.default_rng(0)
    joined = "".join(map(str, text.train))
    for _ in range(20):
        for block in text.blocks(SMALL, rng):
            assert "".join(map(str, block)) in joined
    assert len(text.train) == 360 and len(text.validation) == 40
