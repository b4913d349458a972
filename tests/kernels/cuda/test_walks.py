import inspect

import pytest

from dynbatch.kernels import cumulative, reduce
from dynbatch.kernels.cuda import walks
from dynbatch.kernels.runtime.dispatch import ELEMENTS, SEGMENTS


@pytest.mark.parametrize(
    ("kernel", "walk"),
    [(cumulative.cumsum_segments, SEGMENTS), (reduce.mean_segments_backward, ELEMENTS)],
    ids=["segments", "elements"],
)
def test_a_launch_takes_no_argument_by_name_that_it_would_drop(kernel, walk):
    launch = walks.launch_of(inspect.unwrap(kernel), walk)
    with pytest.raises(TypeError, match="unexpected keyword argument 'out'"):
        launch(*[None] * len(inspect.signature(kernel).parameters), out=None)
