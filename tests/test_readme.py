"""The README's Python, run as a reader would paste it: every block, one after the other."""

import re
from contextlib import nullcontext
from pathlib import Path

from tests.cuda import devices, simulator

README = Path(__file__).parent.parent / "README.md"


def test_the_python_of_the_readme_runs_from_top_to_bottom(capsys):
    text = README.read_text("utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S))
    namespace: dict[str, object] = {"__name__": "readme"}
    on_gpu = [block for block in blocks if '"cuda"' in block[1]]
    way = "gpu" if devices.has_gpu() else "shuffled"
    has_device = devices.has_gpu() or not simulator.missing()
    for block in blocks:
        lines_before = text.count("\n", 0, block.start(1))  # so that tracebacks show the README
        code = compile("\n" * lines_before + block[1], str(README), "exec")
        if block not in on_gpu or has_device:
            with devices.device(way) if block in on_gpu else nullcontext():
                exec(code, namespace)

    losses = re.findall(r"loss (\d\.\d{3})", capsys.readouterr().out)
    assert (len(blocks), len(on_gpu), len(losses)) == (8, 1, 2 + has_device)
    assert not has_device or losses[1] == losses[2]  # the same model, on another device
    # 17 tags, untrained: close to ln 17 = 2.833.
    assert all(2.5 < float(loss) < 3.2 for loss in losses)
