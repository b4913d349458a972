from docs.extensions.docstrings import restructured

DOCSTRING = """Rows of *one* sentence, as `table[ids]` gives; x_ is not a link.

    y_t = W x_t

Args:
    ids:    T integers, 0 <= id < V,
            or `None`.
    a, b:   others.

Shape:  x (T, D) -> y (T, E);
    length 0 gives an empty y.
Memory: one array,
made at once.
Raises:
    ShapeError: too many.

* a point that
  goes on
* another

Example:
    >>> 1 + 1
    2"""

RESTRUCTURED = r"""Rows of \*one\* sentence, as ``table[ids]`` gives; x\_ is not a link.

::

    y_t = W x_t

:Args:
    ``ids``
        T integers, 0 \<= id \< V, or ``None``.
    ``a``, ``b``
        others.
:Shape:
    x (T, D) -\> y (T, E); length 0 gives an empty y.
:Memory:
    one array, made at once.
:Raises:
    ``ShapeError``
        too many.

* a point that goes on
* another

.. rubric:: Example

>>> 1 + 1
2"""


def test_a_docstring_keeps_its_sections_code_and_signs():
    assert "\n".join(restructured(DOCSTRING.split("\n"))).rstrip() == RESTRUCTURED
