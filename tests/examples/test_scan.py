"""SCAN from its grammar: the published counts, and the published examples one by one."""

import pytest

from examples.seq2seq.scan import load_scan, scan_commands

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
def commands():
    return scan_commands()


def test_the_grammar_gives_every_command_once(commands):
    assert len(commands) == len({command.source for command in commands}) == 20_910


def test_published_examples_have_their_published_actions(commands):
    meaning = {" ".join(c.source): " ".join(c.references[0]) for c in commands}
    for line in PUBLISHED.strip().splitlines():
        command, _, actions = line.partition(" -> ")
        assert meaning[command] == " ".join(actions.split())


def test_lengths_are_the_published_ones(commands):
    inputs = [len(command.source) for command in commands]
    outputs = [len(command.references[0]) for command in commands]
    assert (max(inputs), max(outputs), min(outputs)) == (9, 48, 1)
    assert round(sum(inputs) / len(inputs), 2) == 7.25
    assert round(sum(outputs) / len(outputs), 2) == 14.32


def test_the_simple_split_is_four_fifths_and_one_fifth_without_overlap(commands):
    corpus = load_scan("simple")
    assert (len(corpus.train), len(corpus.dev), len(corpus.test)) == (16_728, 0, 4_182)
    sources = {example.source for example in corpus.train + corpus.test}
    assert sources == {command.source for command in commands}


def test_the_simple_split_depends_on_its_seed_alone():
    assert load_scan("simple", seed=1).test == load_scan("simple", seed=1).test
    assert load_scan("simple", seed=1).test != load_scan("simple", seed=2).test


def test_the_length_split_tests_on_longer_outputs_than_it_trains_on():
    corpus = load_scan("length")
    assert (len(corpus.train), len(corpus.test)) == (16_990, 3_920)
    assert max(len(example.references[0]) for example in corpus.train) == 22
    assert min(len(example.references[0]) for example in corpus.test) == 24


def test_the_jump_split_trains_on_the_bare_jump_only():
    corpus = load_scan("addprim_jump")
    assert (len(corpus.train), len(corpus.test)) == (14_670, 7_706)
    with_jump = [example.source for example in corpus.train if "jump" in example.source]
    assert with_jump == [("jump",)] * 1_467
    assert all("jump" in example.source for example in corpus.test)
