"""The README's Python, run as a reader would paste it: every block, one after the other."""

import re
from pathlib import Path

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
