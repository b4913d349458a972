"""check_wheel.py WHEEL: the wheel holds the package, its type marker and its kernels, and no more.

Also imports it in a fresh interpreter, which may load NumPy and none of the optional packages.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIRED = ("dynbatch/__init__.py", "dynbatch/py.typed", "dynbatch/errors.py")
NOT_AT_IMPORT = ("cupy", "safetensors", "torch", "tqdm")
PROBE = f"""
import sys
sys.path.insert(0, sys.argv[1])
import dynbatch
assert dynbatch.__file__.startswith(sys.argv[1]), dynbatch.__file__
assert "numpy" in sys.modules, "numpy was not loaded"
loaded = [name for name in {NOT_AT_IMPORT!r} if name in sys.modules]
assert not loaded, f"import dynbatch also loads {{loaded}}"
"""


def main(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as unpacked:
        names = archive.namelist()
        missing = [name for name in REQUIRED if name not in names]
        sources = [
            str(p)
            for kind in ("*.cu*", "*.c", "*.h", "page.*")
            for p in sorted(Path("dynbatch").rglob(kind))
            if p.parent.name != "__pycache__"
        ]
        missing += [name for name in sources if name not in names]
        foreign = [
            name
            for name in names
            if not name.startswith(("dynbatch/", "dynbatch-")) or "/tests/" in name
        ]
        licence = [name for name in names if name.endswith("/licenses/LICENSE")]
        if missing or foreign or not licence:
            sys.exit(f"{wheel}: missing {missing}, foreign {foreign}, licence {licence}")
        archive.extractall(unpacked)
        result = subprocess.run(
            [sys.executable, "-c", PROBE, unpacked], capture_output=True, text=True
        )
        if result.returncode or result.stdout or result.stderr:
            sys.exit(f"{wheel}: importing it printed or failed:\n{result.stdout}{result.stderr}")
    print(f"{wheel.name}: {len(names)} files, imports with NumPy alone")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
