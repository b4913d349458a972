"""A case is the same in every process."""

import numpy as np

from benchmarks.gpu import cases
from tests.benchmarks.gpu.small import each_workload, tiny


@each_workload
def test_a_case_is_the_same_in_every_process(workload):
    case = tiny(workload)
    options = cases.parser("speed", "").parse_args(case.arguments())
    assert cases.case_of(options) == case
    first, again = case.data(), cases.case_of(options).data()
    assert all(
        np.array_equal(a, b)
        for one, other in zip(first, again, strict=True)
        for a, b in zip(one.sources, other.sources, strict=True)
    )
