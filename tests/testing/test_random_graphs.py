"""The runner of many random graphs finds what is wrong, and says how to see it again."""

from itertools import product
from unittest.mock import patch

import numpy as np
import pytest

import dynbatch as db
from dynbatch.nodes.reductions.reduce import Total
from dynbatch.testing import random_graphs
from dynbatch.testing.random_graph import OPERATIONS, RandomGraph
from dynbatch.testing.random_graphs import draw, main
from dynbatch.testing.random_program import Instruction, RandomSentence
from tests.marks import exhaustive


def test_graphs_of_one_seed_are_equal():
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_many_graphs_pass(capsys):
    assert main(["--graphs", "2", "--seed", "20"]) == 0
    assert "2 graphs" in capsys.readouterr().out


def test_a_planted_fault_is_found_and_its_seed_printed(capsys):
    forward = Total.forward_batch.__func__

    def wrong(cls, batch, y, *xs):
        forward(cls, batch, y, *xs)
        if len(batch.nodes) > 1:
            y.flat[-1] += 1e-6

    with patch.object(Total, "forward_batch", classmethod(wrong)):
        failed = main(["--graphs", "8", "--seed", "48", "--policy", "by_depth"])
    assert failed
    output = capsys.readouterr().out
    seed = int(output.split("seed ")[1].split(":")[0])
    assert f"again: python -m dynbatch.testing.random_graphs --graphs 1 --seed {seed}" in output
    assert f"{failed} failed" in output


def test_the_command_for_one_seed_repeats_its_failure(capsys):
    def wrong(seed, policies):
        assert seed != 3, np.float64(0.5)

    with patch.object(random_graphs, "check", wrong):
        assert main(["--graphs", "5"]) == 1
        assert main(["--graphs", "1", "--seed", "3"]) == 1
        assert main(["--graphs", "1", "--seed", "4"]) == 0
    capsys.readouterr()


def test_an_unknown_policy_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--policy", "best"])
    assert "invalid choice" in capsys.readouterr().err


CHOICES = [*product((7, 15, 23), range(3))]


@pytest.mark.parametrize("choices", [CHOICES[::4], exhaustive(CHOICES)], ids=len)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_takes_a_matrix_without_features(operation, choices):
    """An empty sentence transposed: which other operands are chosen varies with the numbers."""
    for a, b in choices:
        program = (Instruction("transpose", 3, 0, 0.0), Instruction(operation, a, b, 0.5))
        with db.Graph(dtype="float64", seed=0) as graph:
            built = RandomGraph((RandomSentence(0, program),)).build(graph)
            assert built.nodes[9].shape == (3, 0)
            graph.backward(built.loss)
            assert np.isfinite(built.loss.value)
