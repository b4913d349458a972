"""The tests that a change reaches first: `make test-changed`, or `pytest --changed[=BASE]`.

The change is what differs from the commit where HEAD left BASE, and files that git does not know.
Reverse uses (`tests/uses.py`) lead from it to very many tests, so the nearest run: files of tests
by the uses between them and the change, by the folders that both are in, then by their seconds,
nearer than `FAR` and up to `BUDGET`. What was changed itself, tests named after it and its doctests
always run. Of tests with a parameter from `tests/node_cases.py`, cases run that run a near file.
"""

from __future__ import annotations

import gc
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import not_
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.uses import Repository, module_of, subject_of, without_ending

BUDGET = 50
"""Seconds of processors, as the table has them, for tests and their collection."""
FAR = 5
"""A distance from which on no test runs."""
USUAL = 1.0
"""Seconds of a file that the table does not name: the mean of all is 0.8, near ones take more."""
TABLE = Path("benchmarks/results/tests.json")
PACKAGE = "dynbatch/__init__.py"
NODE_CASES = "tests/node_cases.py"


def git(root: Path, *arguments: str) -> list[str]:
    """The lines that git prints; none if it refuses."""
    ended = subprocess.run(
        ["git", *arguments], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return ended.stdout.splitlines() if ended.returncode == 0 else []


def changed_since(root: Path, base: str) -> list[str]:
    """Paths of what differs from the commit where HEAD left `base`, by default upstream or main.

    Raises:
        UsageError: git knows no such commit.
    """
    for name in [base] if base else ["@{upstream}", "origin/main", "main", "HEAD"]:
        if start := git(root, "merge-base", name, "HEAD"):
            known = git(root, "diff", "--name-only", "--no-renames", *start)
            return sorted({*known, *git(root, "ls-files", "--others", "--exclude-standard")})
    raise pytest.UsageError(f"--changed: git knows no commit {base or 'HEAD'!r}")


def distances(changed: Iterable[str], users: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """The number of uses between each file and the nearest change.

    Tests, fixtures and the package itself lead no further, unless they were changed.
    """
    near = dict.fromkeys(changed, 0)
    queue = list(near)
    for file in queue:
        if near[file] and (file == PACKAGE or Path(file).name.startswith(("test_", "conftest."))):
            continue
        for user in sorted(users.get(file, ())):
            if user not in near:
                near[user] = near[file] + 1
                queue.append(user)
    return near


def files_with_tests(repository: Repository) -> list[str]:
    """The files in which pytest finds tests, among them modules with doctests."""
    return [
        file for file in repository.files
        if (file.startswith("tests/") and Path(file).match("test_*.py"))
        or (file.startswith("dynbatch/") and file in repository.modules.values()
            and repository.texts[module_of(file)].has_doctests)
    ]  # fmt: skip


def seconds_of(root: Path) -> dict[str, float]:
    """Seconds of each file of tests, collection included, by the table of durations."""
    table = root / TABLE
    suites = json.loads(table.read_text()).values() if table.exists() else []
    seconds: dict[str, float] = {}
    for suite in suites:
        for file, (_, *parts) in suite["files"].items():
            seconds[file] = seconds.get(file, 0) + sum(parts)
    return seconds


class Choice(NamedTuple):
    """Files of tests in the order of their distances.

    Args:
        run:  those within the budget.
        left: the others, by distance; at `FAR` those that are farther too.
    """

    run: list[str]
    left: dict[int, list[str]]


def choose(
    tests: Iterable[str], changed: Iterable[str], near: Mapping[str, int],
    seconds: Mapping[str, float], budget: float,
) -> Choice:  # fmt: skip
    """The tests nearest to a change, of those that it reaches."""
    subjects = [without_ending(file) for file in changed]

    def shared(file: str) -> int:
        """The most folders that a file's subject has in common with a change."""
        folders = Path(subject_of(file)).parents
        return max(sum(one in folders for one in Path(name).parents) for name in subjects)

    def rank(file: str) -> tuple[float, ...]:
        distance = 0 if subject_of(file) in subjects else near[file]
        return distance, -shared(file), seconds.get(file, USUAL)

    choice, taken = Choice([], {}), 0.0
    for file in sorted(sorted(file for file in tests if file in near), key=rank):
        distance, _, cost = rank(file)
        if distance and (distance >= FAR or taken + cost > budget):
            choice.left.setdefault(min(int(distance), FAR), []).append(file)
        else:
            choice.run.append(file)
            taken += cost
    return choice


def nearest_cases(near: Mapping[str, int], root: Path) -> tuple[list[str], int]:
    """The node cases that run a file nearest to the change, and how many cases there are.

    A file that all of them run tells nothing.
    """
    from tests.nodes.test_contract import CASES, kinds_in

    run: dict[str, set[str]] = {case.name: set() for case in CASES}
    for case in CASES:
        add = run[case.name].add
        sys.setprofile(lambda frame, event, argument, add=add: add(frame.f_code.co_filename))
        kinds_in(case)
        sys.setprofile(None)
    by_all = set.intersection(*run.values())
    steps = {
        name: min(
            [
                math.inf,
                *(near.get(file.removeprefix(f"{root}/"), math.inf) for file in files - by_all),
            ]
        )
        for name, files in run.items()
    }
    least = max(1, min(steps.values()))
    return [name for name, distance in steps.items() if distance <= least], len(CASES)


def case_of(item: pytest.Item) -> str | None:
    """The name of the node case that a test has as a parameter."""
    from tests.node_cases import Case

    values = getattr(getattr(item, "callspec", None), "params", {}).values()
    return next((value.name for value in values if isinstance(value, Case)), None)


class Changed:
    """Runs the chosen tests in place of all, and says which it left out.

    pytest's first process chooses, and tells the workers of xdist.
    """

    def __init__(self, config: pytest.Config, base: str) -> None:
        self.lines: list[str] = []
        self.cases: list[str] = []
        if hasattr(config, "workerinput"):
            config.args[:], self.cases = config.workerinput["changed"]
        else:
            gc.disable()  # trees of syntax, and of all node cases, make no garbage
            try:
                config.args[:] = self.choose(config, base)
            finally:
                gc.enable()
        self.args = config.args
        config.args_source = config.ArgsSource.ARGS

    def choose(self, config: pytest.Config, base: str) -> list[str]:
        """The files that pytest is to run."""
        root, ignored = config.rootpath, tuple(config.option.ignore or ())
        every = git(root, "ls-files", "--cached", "--others", "--exclude-standard")
        cache = getattr(config, "cache", None)
        store = cache and cache.mkdir("uses")
        repository = Repository(root, [file for file in every if (root / file).is_file()], store)
        changed = [file for file in changed_since(root, base) if file in repository.files]
        if not changed:
            pytest.exit("nothing has changed", 0)
        near, seconds = distances(changed, repository.users), seconds_of(root)
        users = repository.users[NODE_CASES] & near.keys()
        if of_cases := [file for file in users if NODE_CASES in repository.homes(file)]:
            self.cases, count = nearest_cases(near, root)
            for file in of_cases:
                seconds[file] = seconds.get(file, USUAL) * len(self.cases) / count
        tests = files_with_tests(repository)
        tests = [file for file in tests if not f"{root / file}".startswith(ignored)]
        choice = choose(tests, changed, near, seconds, BUDGET)
        self.lines = list(report(changed, choice, repository))
        return [str(root / file) for file in choice.run]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["changed"] = (self.args, self.cases)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if self.cases:
            is_near = [case_of(item) in (None, *self.cases) for item in items]
            config.hook.pytest_deselected(items=list(compress(items, map(not_, is_near))))
            items[:] = compress(items, is_near)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.lines:
            terminalreporter.write_line(line)


def report(changed: Sequence[str], choice: Choice, repository: Repository) -> Iterator[str]:
    """Lines on what runs, on what is left out, and on pages, which `make docs` runs."""
    yield f"changed: {len(changed)} files, nearest to which are {len(choice.run)} files of tests"
    for distance, files in sorted(choice.left.items()):
        texts = [repository.texts[module_of(file)] for file in files]
        count = sum(name.startswith("test_") for text in texts for name in text.defined)
        uses = f"{distance} uses" if distance < FAR else f"{distance} uses and more"
        yield f"left out: {count} tests in {len(files)} files, which reach it over {uses}"
    yield "left out: tests that it does not reach; `make test` runs all"
    pages = [file.removesuffix(".md") for file in changed if file.endswith(".md")]
    if pages:
        yield f'left out: pages, which make docs ARGS="{" ".join(pages)}" runs'
