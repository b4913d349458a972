"""The methods that place blocks, and the goal of the one that is used."""

import json

import numpy as np
import pytest
from hypothesis import given

import dynbatch as db
from benchmarks.lengths import REAL_TEXT_SIGMA
from benchmarks.memory import planners
from benchmarks.networks import initial_values
from benchmarks.workloads import WORKLOADS
from dynbatch.memory import Interval, live_peak, plan_offsets
from tests.marks import quick
from tests.memory.test_planner import intervals
from tests.poison import assert_disjoint

pytestmark = pytest.mark.usefixtures("same_threads")


@pytest.mark.parametrize("method", quick(["the planner", "by breadth"], planners.METHODS))
@given(blocks=intervals())
def test_every_method_keeps_blocks_apart(method, blocks):
    total = planners.METHODS[method](blocks)
    assert_disjoint(blocks)
    assert all(0 <= block.offset and block.offset + block.size <= total for block in blocks)
    assert all(block.offset % block.alignment == 0 for block in blocks)
    assert total >= live_peak(blocks)


def test_breadth_takes_the_fullest_stage_first():
    """The two of stage 1, largest first; only then the larger one of stage 0."""
    blocks = [Interval(6, 0, 0), Interval(4, 1, 1), Interval(5, 1, 1), Interval(1, 0, 1)]
    assert planners.by_breadth(blocks) == 10
    assert [block.offset for block in blocks] == [0, 5, 0, 9]


def test_the_skyline_takes_the_block_that_lives_longest():
    blocks = [Interval(2, 0, 0), Interval(3, 1, 2), Interval(1, 0, 2), Interval(1, 1, 1)]
    assert planners.by_strip_packing(blocks) == 5
    assert [block.offset for block in blocks] == [1, 1, 0, 4]


@pytest.mark.parametrize("name", planners.COMPARED)
@pytest.mark.parametrize("sentences", [1, 16])
def test_arenas_take_at_most_a_twentieth_more_than_what_is_alive(name, sentences):
    workload, rng = WORKLOADS[name], np.random.default_rng(sentences)
    side = workload.ours(workload.sizes, initial_values(workload.sizes, rng), "cpu")
    for batch in workload.corpus(REAL_TEXT_SIGMA).random_batches(rng, 2, sentences):
        with planners.recorded() as found, db.Graph() as graph:
            graph.estimate(side.mean_loss(graph, batch))
        blocks = max([blocks for blocks, _ in found], key=len)
        assert len(blocks) > 10
        assert plan_offsets(blocks) <= planners.TIGHT * live_peak(blocks)


def test_the_command_prints_a_table_and_json(capsys):
    assert planners.main(["tagger", "--batches", "1", "--sentences", "8", "--json"]) in (0, 1)
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)
    assert row["workload"] == "tagger" and row["ratios"].keys() == planners.METHODS.keys()
    assert 1 <= row["ratios"]["the planner"] <= planners.TIGHT
    assert 0 < row["place_share"] <= row["plan_share"]
    assert "goal 1.05" in printed.err
