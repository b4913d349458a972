import re

import pytest

from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.source import KernelParameter

TEXT = """
__device__ void inner(float* x) {}
extern "C" __global__ void __launch_bounds__(256, 2) scale(
    const REAL* __restrict__ x, long long *const y,
    unsigned int n, const __grid_constant__ Table table, REAL a) {}
extern "C" __global__ void nothing() {}
"""


def test_signatures_of_all_kernels_in_a_text():
    assert source.signatures(TEXT) == {
        "scale": (
            KernelParameter("x", "REAL", True, True),
            KernelParameter("y", "long long", True),
            KernelParameter("n", "unsigned int", False),
            KernelParameter("table", "Table", False),
            KernelParameter("a", "REAL", False),
        ),
        "nothing": (),
    }


def test_common_text_stands_in_front_and_lines_keep_their_numbers():
    joined = source.join("scale.cu", TEXT)
    common, _, body = joined.text.partition('#line 1 "scale.cu"\n')
    assert common.startswith('#line 1 "common.cuh"\n') and "warp_reduce" in common
    assert body == TEXT and joined.kernels == source.signatures(TEXT)


def test_an_included_header_stands_where_it_is_named_and_lines_keep_their_numbers():
    body = '// Two lines before\n\n#include "dot_product.cuh"\n' + TEXT
    joined = source.join("scale.cu", body)
    before, _, rest = joined.text.partition('#line 1 "dot_product.cuh"\n')
    assert before.endswith("// Two lines before\n\n") and "struct Tables" in rest
    assert rest.endswith('#line 4 "scale.cu"\n' + TEXT)


def test_no_source_is_left_with_an_include():
    for name in source.names():
        assert not re.search(r"^\s*#\s*include", source.read(name).text, re.MULTILINE)


def test_kernel_names_are_distinct():
    kernels = [kernel for name in source.names() for kernel in source.read(name).kernels]
    assert len(kernels) == len(set(kernels))


def test_a_kernel_is_found_by_its_name():
    assert source.home("gather_rows").name == "move.cu"
    with pytest.raises(LookupError, match=r"no file of .*move\.cu.* defines a kernel 'absent'"):
        source.home("absent")
