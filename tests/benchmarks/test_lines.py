import json

import pytest

from benchmarks.lines import Size, main, sizes, table


@pytest.fixture
def package(tmp_path):
    (tmp_path / "compiler" / "c").mkdir(parents=True)
    (tmp_path / "compiler" / "README.md").write_text("One line.\n")
    (tmp_path / "compiler" / "ir.py").write_text('"""Operators."""\n\n# A comment.\n')
    (tmp_path / "compiler" / "c" / "loop.c").write_text("int a;\n")
    (tmp_path / "compiler" / "c" / "loop.h").write_text("int b;\nint c;")
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "softmax.py").write_text("pass\n")
    return tmp_path


def test_each_folder_counts_the_lines_of_its_own_source_files(package):
    assert sizes(["compiler"], package) == {"compiler": Size(1, 3), "compiler/c": Size(2, 3)}


def test_the_table_ends_with_the_sum(package):
    last = table(sizes(["compiler", "nodes"], package)).splitlines()[-1]
    assert last.split() == "7 4 files in 3 folders".split()


def test_a_folder_that_is_not_there_is_an_error(package):
    with pytest.raises(FileNotFoundError, match="cell is not a folder"):
        sizes(["cell"], package)


def test_the_command_counts_compiler_and_cells(capsys):
    assert main(["--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert {"compiler", "compiler/c", "cells/scan", "cells/calls"} <= set(counted)
    assert all(name.split("/")[0] in ("compiler", "cells") for name in counted)
