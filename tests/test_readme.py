"""The README fits a page and a half, and its Python runs as a reader would paste it."""

import re
from pathlib import Path

from docs.blocks import blocks_of

README = Path(__file__).parent.parent / "README.md"


def test_the_python_of_the_readme_trains_a_step(capsys):
    (block,) = [each for each in blocks_of(README.read_text("utf-8")) if each.language == "python"]
    exec(compile(block.code, str(README), "exec"), {"__name__": "readme"})
    loss, nodes, batches = re.findall(r"[\d.]+", capsys.readouterr().out)
    assert 2.5 < float(loss) < 3.2  # 17 tags, untrained: close to ln 17 = 2.833
    assert int(batches) < int(nodes)


def test_the_readme_stays_short_and_names_a_command_beside_each_figure():
    lines = README.read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and "**" in line]
    assert len(lines) <= 130
    assert len(rows) == 6
    assert all([re.search(r"`(make bench|python -m benchmarks)[^`]*` \|$", row) for row in rows])
