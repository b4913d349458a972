"""The README's Python, run as a reader would paste it: every block, one after the other."""

import re
from pathlib import Path

import dynbatch as db
from dynbatch import nodes as F

README = Path(__file__).parent.parent / "README.md"


def test_the_python_of_the_readme_runs_from_top_to_bottom(capsys):
    text = README.read_text("utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S))
    namespace: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        lines_before = text.count("\n", 0, block.start(1))  # so that tracebacks show the README
        exec(compile("\n" * lines_before + block[1], str(README), "exec"), namespace)

    losses = re.findall(r"loss (\d\.\d{3})", capsys.readouterr().out)
    assert len(blocks) == 3 and len(losses) == 2
    # 17 tags, untrained: close to ln 17 = 2.833.
    assert all(2.5 < float(loss) < 3.2 for loss in losses)


def test_the_node_type_of_the_extension_guide_passes_its_own_check():
    guide = README.parent / "docs" / "extending.md"
    (block,) = re.findall(r"^```python\n(.*?)^```$", guide.read_text("utf-8"), re.M | re.S)
    namespace: dict[str, object] = {"__name__": "extending"}
    exec(compile(block, str(guide), "exec"), namespace)

    graph = db.Graph()
    square = namespace["Square"](F.input(graph, [[3.0, -2.0]]))
    assert square.value.tolist() == [[9.0, 4.0]]
