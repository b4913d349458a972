"""The README's Python, run as a reader would paste it: every block, one after the other."""

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.kernels.c.runtime.library import reason
from tests.cuda import devices, simulator

README = Path(__file__).parent.parent / "README.md"


def run_blocks(page):
    """Every Python block of a page of docs, one after the other; what they leave behind."""
    text = (README.parent / "docs" / page).read_text("utf-8")
    namespace: dict[str, Any] = {"__name__": "docs"}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
        exec(compile(block, page, "exec"), namespace)
    return namespace


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


def test_the_node_type_of_the_extension_guide_passes_its_own_check():
    namespace = run_blocks("guides/extending.md")
    graph = db.Graph()
    square = namespace["Square"](F.input(graph, [[3.0, -2.0]]))
    assert square.value.tolist() == [[9.0, 4.0]]
    weight = db.Parameter(np.array([1.0, 10.0], np.float32))
    scaled = namespace["ScaledColumns"](F.input(graph, [[3.0, -2.0]]), factor=2.0, weight=weight)
    assert scaled.value.tolist() == [[6.0, -40.0]]


def test_the_page_on_generating_scores_what_was_sampled(capsys):
    namespace = run_blocks("guides/generation.md")
    printed = capsys.readouterr().out
    assert printed.count("log-probabilities differ by") == 2
    if not reason():  # without C a row's last bits may depend on its company
        assert max(namespace["differences"]) == 0


def test_the_page_on_explaining_shows_reasons_that_are_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_blocks("guides/explain.md")
    out = capsys.readouterr().out
    assert "parameter differs: 'a.weight' / 'b.weight'" in out
    assert "static attribute alpha differs: 0.1 / 0.3" in out and "digraph" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["page.html", "trace.json"]


def test_the_page_for_those_who_come_from_pytorch_runs_and_learns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = run_blocks("tutorials/from-pytorch.md")
    assert capsys.readouterr().out.startswith("Tagger, ")
    assert (tmp_path / "tagger.safetensors").exists()
    right = [
        found == tags
        for found, (_, tags) in zip(namespace["found"], namespace["batch"], strict=True)
    ]
    assert np.concatenate(right).all()


def test_the_page_on_trust_shows_what_the_guard_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_blocks("guides/trust.md")
    said = capsys.readouterr().out
    page = (README.parent / "docs" / "guides" / "trust.md").read_text("utf-8")
    shown = page.split("```\nLog #")[1].split("  ...")[0]
    assert said.startswith("Log #" + shown)
    assert "under every policy: NumericError: Total #9" in said


def test_the_page_on_memory_compares_padding_exactly(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = run_blocks("guides/memory.md")["found"]
    assert "compute the same loss" in found.note
    assert (tmp_path / "found.json").exists()
    assert "less than padded" in capsys.readouterr().out


def test_the_page_on_threads_encodes_in_four_of_them(capsys):
    run_blocks("guides/threads.md")
    assert capsys.readouterr().out == "[3, 3, 3, 3]\n"


def test_the_page_on_pretrained_models_reads_trains_and_writes_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = run_blocks("guides/pretrained.md")
    assert namespace["classifier"].classifier.weight.grad is not None
    folders = [path.name for path in sorted(tmp_path.iterdir())]
    assert folders == ["tiny-bert", "tiny-gpt2", "tiny-gpt2-trained"]
