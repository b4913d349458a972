"""Every way of every switch."""

import json

from benchmarks.gpu import switches
from dynbatch.compiler.cuda import fused_product, persistent
from dynbatch.errors import BackendError
from dynbatch.kernels.cuda.attention import dot_product as cuda_attention
from dynbatch.kernels.cuda.runtime import graphs, streams
from tests.benchmarks.gpu.small import each_workload, last, tiny


@each_workload
def test_each_switch_is_timed_both_ways_and_put_back(cuda, workload):
    before = [switch.default for switch in switches.SWITCHES]
    states = [json.loads(json.dumps(one)) for one in switches.measure(tiny(workload, batches=1))]
    found = states[-1]
    assert [len(state["switches"]) for state in states] == list(
        range(1, len(found["switches"]) + 1)
    )
    assert list(found["switches"]) == [switch.name for switch in switches.SWITCHES]
    for switch in switches.SWITCHES:
        one = found["switches"][switch.name]
        assert one["broken"] == {} and one["ms"].keys() == switch.ways.keys()
        assert switch.default in switch.ways and len(switch.ways) > 1
        assert one["take"] in switch.ways
    tails = f"{persistent.TAIL_ROWS} to {persistent.TAIL_BYTES >> 10} KiB"
    values = (fused_product.FEW_ROWS, tails, graphs.STEPS, streams.WORTH_A_STREAM)
    values += (cuda_attention.TENSOR_CORES,) * 2
    assert [str(value) for value in values] == before


def test_a_switch_moves_for_a_clear_gain_only(cuda):
    assert switches._to_take({"a": 1.0, "b": 0.99}, "a") == "a"
    assert switches._to_take({"a": 1.0, "b": 0.9}, "a") == "b"
    assert switches._to_take({}, "a") == "a"  # none of them runs
    broken = switches.Switch("x", {"a": _refused, "b": _refused}, "a")
    found = last(switches.measure(tiny("tagger", batches=1), [broken]))["switches"]["x"]
    assert found["broken"] == {"a": "no such way", "b": "no such way"} and found["take"] == "a"


def _refused(side):
    raise BackendError("no such way")
