"""check_install.py WHEEL: what a stranger installs works, in an empty environment of its own.

The sdist holds what building and testing needs; the wheel that is built from it is WHEEL, byte by
byte. WHEEL and its dependencies alone, in an empty folder with an empty home, show the help of
every command, run the demo, and train, resume, generate, explain, plot and measure. A user's
project passes `mypy --strict`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKED = {
    ".ci", ".clang-format", ".gitignore", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md",
    "LICENSE", "Makefile", "PKG-INFO", "README.md", "SECURITY.md", "benchmarks", "docs", "dynbatch",
    "examples", "pyproject.toml", "tests",
}  # fmt: skip
ONES = "one two three four five six seven eight nine".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
PAIRS = "".join([f"{a} {b}\t{k}{j}\n" for k, a in enumerate(TENS) for j, b in enumerate(ONES)])


def main(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_sdist(Path(folder), wheel)
        environment = Path(folder, "venv")
        make_environment(environment, wheel)
        check_types(Path(folder), environment)
        check_commands(Path(folder), environment)


def check_sdist(folder: Path, wheel: Path) -> None:
    """Build an sdist, look into it, and build a wheel of it alone."""
    builder, built = folder / "builder", folder / "built"
    make_environment(builder, "hatchling>=1.27")
    run(builder, ["python", "-m", "hatchling", "build", "-t", "sdist", "-d", built], ROOT)
    (sdist,) = built.iterdir()
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    top = {name.split("/")[0] for name in names}
    if top != PACKED:
        sys.exit(f"{sdist.name}: {top - PACKED} too many, {PACKED - top} missing")
    command = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", built, sdist]
    run(builder, command, folder)
    (again,) = built.glob("*.whl")
    if again.name != wheel.name or again.read_bytes() != wheel.read_bytes():
        sys.exit(f"{wheel.name} of the tree differs from that of {sdist.name}")
    print(f"{sdist.name}: {len(names)} files, {sdist.stat().st_size / 1e6:.1f} MB; same wheel")


def check_types(folder: Path, environment: Path) -> None:
    """Check a user's project in strict types against the installed wheel."""
    shutil.copytree(ROOT / "tests/user_project", folder / "user_project")
    python = environment / "bin/python"
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder / "mypy"]
    run(environment, [*command, "--python-executable", python, "user_project"], folder)


def check_commands(folder: Path, environment: Path) -> None:
    """Run all commands as somebody does who has installed the wheel and nothing else."""
    work, home = folder / "work", folder / "home"
    work.mkdir()
    home.mkdir()

    def said(*command: str) -> str:
        begin = time.perf_counter()
        output = run(environment, command, work, home)
        print(f"  {' '.join(command)}: {time.perf_counter() - begin:.1f} s")
        return output

    listed = "from dynbatch.commands.main import COMMANDS as c; print(*c)"
    commands = said("python", "-c", listed).split()
    overview = said("dynbatch", "--help")
    for name in commands:
        assert name in overview, name
        assert f"dynbatch {name}" in said("dynbatch", name, "--help"), name
    demo = said("python", "-m", "dynbatch.demo")
    exact = float(demo.split(" exact, ")[1].partition("%")[0])
    assert exact >= 95, demo
    assert not list(work.iterdir()), "the demo wrote a file"
    Path(work, "numbers.tsv").write_text(PAIRS, encoding="utf-8")
    said("dynbatch", "train", "numbers.tsv", "--epochs", "2", "--hidden", "32", "--quiet")
    said("dynbatch", "train", "--output", "runs/numbers", "--resume", "--epochs", "3", "--quiet")
    assert said("dynbatch", "generate", "runs/numbers", "forty two", "twenty").count("\n") == 2
    said("dynbatch", "explain", "runs/numbers")
    said("dynbatch", "plot", "runs/numbers")
    said("dynbatch", "memory", "numbers.tsv", "--hidden", "32", "--batches", "1")


def make_environment(place: Path, *packages: str | Path) -> None:
    """Make a virtual environment with these packages and what they need."""
    maker = ["sh", str(ROOT / ".ci/make_venv.sh"), str(place)]
    subprocess.run(
        maker, env={**os.environ, "PYTHON": sys.executable}, check=True, stdout=subprocess.DEVNULL
    )
    install = ["pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    run(place, install, place)


def run(
    environment: Path,
    command: Sequence[str | Path],
    where: Path,
    home: Path | None = None,
) -> str:
    """What a command prints, with an environment's programs first; ends here where it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept["PATH"] = f"{environment / 'bin'}:{kept['PATH']}"
    if home is not None:
        kept["HOME"] = str(home)
    done = subprocess.run(
        [str(part) for part in command],
        cwd=where,
        env=kept,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
