import pytest

from dynbatch.commands.main import main
from dynbatch.reporting.node_types import node_types


def test_types_are_listed_by_name_whatever_the_case(capsys):
    assert main(["nodes", "softmax", "MatMul"]) == 0
    types = node_types()
    assert capsys.readouterr().out == f"{types['Softmax']}\n\n{types['MatMul']}\n"


def test_without_a_name_all_are_listed(capsys):
    assert main(["nodes"]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line and line[0] != " "]
    assert {"Softmax", "LinearMap", "Scan", "BlockCall"} <= set(heads)


@pytest.mark.parametrize(
    ("name", "fix"), [("Sofmax", "names like it: Softmax"), ("Zzz", "`dynbatch nodes` lists all")]
)
def test_an_unknown_name_is_answered_by_the_nearest(capsys, name, fix):
    assert main(["nodes", name]) == 1
    said = capsys.readouterr().err
    assert f"there is no type of node {name}" in said and fix in said
