"""`dynbatch nodes [NAME ...]`: what each type of node computes, batches with, and runs."""

from __future__ import annotations

import argparse
from difflib import get_close_matches

from dynbatch.errors import ArgumentError
from dynbatch.reporting.node_types import node_types

SUMMARY = "list the types of nodes: shapes, what batches, kernels"
HELP = """\
List the types of nodes: what each computes, its shapes, what it batches with,
and the kernels that it runs, with the languages that these are there in.

  dynbatch nodes | less
  dynbatch nodes Softmax
  dynbatch nodes LinearMap MatMul Scan
"""
MORE = """\
names:
  dynbatch explain and graph.explain() show a batch by the name of its type.
  A scan and a cell's calls run kernels that are generated for the cell.

in Python:
  dynbatch.node_types() is the list, with a program's own types in it.

exit status:
  0; 1 where no type has a name; 2 after a wrong option.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="of a type (default: all)")


def run(options: argparse.Namespace) -> None:
    """Print the types.

    Raises:
        ArgumentError: there is no type of a name.
    """
    types = node_types()
    by_lower_case = {name.lower(): name for name in types}
    for name in options.names:
        if name.lower() not in by_lower_case:
            near = get_close_matches(name.lower(), by_lower_case, n=3, cutoff=0.5)
            names = ", ".join([by_lower_case[each] for each in near])
            raise ArgumentError(
                f"there is no type of node {name}.\n"
                f"  fix:  {f'names like it: {names}' if near else '`dynbatch nodes` lists all'}"
            )
    wanted = [by_lower_case[name.lower()] for name in options.names] or list(types)
    print("\n\n".join([str(types[name]) for name in wanted]))
