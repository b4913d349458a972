"""SCAN from its grammar: the published counts, and the published examples one by one."""

import pytest

from dynbatch.demo.scan import scan_pairs, simple_split

# From the data set's README and files, github.com/brendenlake/SCAN.
PUBLISHED = """
jump -> I_JUMP
jump left -> I_TURN_LEFT I_JUMP
jump thrice -> I_JUMP I_JUMP I_JUMP
turn left twice -> I_TURN_LEFT I_TURN_LEFT
turn around right and turn left -> \
    I_TURN_RIGHT I_TURN_RIGHT I_TURN_RIGHT I_TURN_RIGHT I_TURN_LEFT
jump around right -> \
    I_TURN_RIGHT I_JUMP I_TURN_RIGHT I_JUMP I_TURN_RIGHT I_JUMP I_TURN_RIGHT I_JUMP
jump opposite left and walk thrice -> I_TURN_LEFT I_TURN_LEFT I_JUMP I_WALK I_WALK I_WALK
run opposite right twice after turn left twice -> \
    I_TURN_LEFT I_TURN_LEFT I_TURN_RIGHT I_TURN_RIGHT I_RUN I_TURN_RIGHT I_TURN_RIGHT I_RUN
"""


@pytest.fixture(scope="module")
def pairs():
    return scan_pairs()


def test_the_grammar_gives_every_command_once(pairs):
    assert len(pairs) == len({command for command, _ in pairs}) == 20_910


def test_published_examples_have_their_published_actions(pairs):
    meaning = {" ".join(command): " ".join(actions) for command, actions in pairs}
    for line in PUBLISHED.strip().splitlines():
        command, _, actions = line.partition(" -> ")
        assert meaning[command] == " ".join(actions.split())


def test_lengths_are_the_published_ones(pairs):
    inputs = [len(command) for command, _ in pairs]
    outputs = [len(actions) for _, actions in pairs]
    assert (max(inputs), max(outputs), min(outputs)) == (9, 48, 1)
    assert round(sum(inputs) / len(inputs), 2) == 7.25
    assert round(sum(outputs) / len(outputs), 2) == 14.32


def test_the_simple_split_is_four_fifths_and_one_fifth_without_overlap(pairs):
    train, test = simple_split()
    assert (len(train), len(test)) == (16_728, 4_182)
    assert sorted(train + test) == sorted(pairs)


def test_the_simple_split_depends_on_its_seed_alone():
    assert simple_split(seed=1) == simple_split(seed=1) != simple_split(seed=2)
