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


def test_a_kernel_alone_has_no_other_beside_it_and_lines_keep_their_numbers():
    body = TEXT.replace("REAL a) {}", "REAL a) {\n  // } not an end\n  for (;;) { /* } */ }\n}")
    joined = source.join("scale.cu", body)
    text = source.alone(joined, "nothing")
    assert source.signatures(text) == {"nothing": ()} and "void inner" in text
    assert "for (;;)" not in text and "not an end" not in text
    assert text.count("\n") == joined.text.count("\n")
    assert text.splitlines()[-1] == 'extern "C" __global__ void nothing() {}'
    assert "for (;;)" in source.alone(joined, "scale")


def test_a_kernel_without_an_end_is_an_error():
    joined = source.join("open.cu", 'extern "C" __global__ void open() { if (1) {}')
    with pytest.raises(ValueError, match="a kernel has no end"):
        source.alone(joined, "other")


def test_a_kernels_text_is_the_same_whatever_its_file_says_besides():
    text = """
        // Of the first.
        extern "C" __global__ void first() { a(); }
        extern "C" __global__ void last() { /* } */ }
    """
    one = source.join("x.cu", text)
    other = source.join("x.cu", text.replace("a();", "b(); /* { */").replace("Of", "About"))
    assert source.alone(one, "last") == source.alone(other, "last")
    assert source.alone(one, "first") != source.alone(other, "first")


def test_every_kernel_of_a_file_is_alone_in_its_text():
    for name in source.names():
        given = source.read(name)
        for kernel, parameters in given.kernels.items():
            assert source.signatures(source.alone(given, kernel)) == {kernel: parameters}


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
