"""Pages of the reference read on a code host: each block of directives has a table above it."""

import re
from importlib.util import find_spec

import pytest

from docs import summaries

PAGES = sorted({page.name for page in summaries.API.glob("*.md")} - {"index.md"})


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_the_reference_are_as_the_docstrings(name):
    """`python docs/summaries.py` writes them."""
    if name == "torch.md" and find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    text = (summaries.API / name).read_text("utf-8")
    assert text == summaries.with_tables(text)
    assert "<!-- names -->" in text


@pytest.mark.parametrize("name", PAGES)
def test_a_summary_is_not_cut_off_where_a_sentence_goes_on(name):
    text = (summaries.API / name).read_text("utf-8")
    assert not re.findall(r"^\| .*(?:,|\b(?:and|or|of|with|the|is)) \|$", text, re.M)


def test_a_name_stands_with_its_arguments_and_its_first_sentence():
    block = """```{eval-rst}
.. currentmodule:: dynbatch.nodes

.. autofunction:: dot
```"""
    written = summaries.with_tables(block)
    assert "| `dot(a, b)` | Σ_i a_i b_i of two vectors, a scalar, as `torch.dot`. |" in written
    assert written.endswith(block) and summaries.with_tables(written) == written
