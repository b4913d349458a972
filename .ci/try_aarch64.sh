#!/usr/bin/env bash
# try_aarch64.sh WHEEL [PYTEST ARGUMENT ...]: tests with the wheel for Linux on ARM, as qemu runs it.
#
# Without arguments: all of the kernels, bits in any company, random graphs. Nothing is compiled
# there, so that the wheel's kernels run; tests that would compile C of their own skip. For Debian
# with qemu-user; Python for ARM is unpacked from Debian's packages, and NumPy and pytest from PyPI,
# in build/aarch64. Emulated, it takes hours: it may be stopped at any time, and goes on with the
# tests that have not ended with this wheel.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
wheel=$(realpath "${1:?WHEEL}") && shift
folder=$root/build/aarch64
command -v qemu-aarch64 >/dev/null || { echo "error: apt-get install qemu-user (as root)" >&2; exit 1; }

if [ ! -e "$folder/python/ready" ]; then
    dpkg --print-foreign-architectures | grep -qx arm64 ||
        { dpkg --add-architecture arm64 && apt-get update -qq; }
    mkdir -p "$folder/packages" "$folder/python" && cd "$folder/packages"
    apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
        --no-replaces --no-enhances python3:arm64 libstdc++6:arm64 |
        grep -E '^[a-z].*:arm64$' | sort -u | xargs apt-get download -qq
    for each in *.deb; do dpkg-deb -x "$each" "$folder/python"; done
    touch "$folder/python/ready"
fi
version=$(basename "$(readlink "$folder/python/usr/bin/python3")")
if [ ! -e "$folder/site/pytest" ]; then
    python3 -m pip install --quiet --target "$folder/site" --only-binary=:all: --implementation cp \
        --python-version "${version#python}" --platform manylinux_2_28_aarch64 \
        --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
        "numpy>=2" "safetensors>=0.4.3" "tqdm>=4.60" "pytest>=9" "hypothesis>=6.100"
fi
of_wheel=$folder/$(sha256sum "$wheel" | cut -c1-16)
if [ ! -e "$of_wheel/site" ]; then
    rm -rf "$of_wheel/part" && python3 -m zipfile -e "$wheel" "$of_wheel/part"
    mv "$of_wheel/part" "$of_wheel/site" # which is whole, wherever this was stopped
fi
mkdir -p "$of_wheel/work" "$folder/home" && cd "$of_wheel/work"
cp -r --update --preserve=timestamps "$root"/{tests,examples,benchmarks,pyproject.toml,.ci/resumed.py} .

# OpenBLAS raises flags of floating point under qemu that its results do not bear out. Of a warning
# pytest compares the beginning, letter by letter.
ignored=()
for flag in "divide by zero" "invalid value" "overflow"; do
    ignored+=(-W "ignore:$flag encountered in matmul")
done
[ $# -gt 0 ] || set -- tests/kernels tests/test_batch_invariance.py tests/test_random_graphs.py
exec env -i PATH=/nonexistent HOME="$folder/home" RESUMED="$of_wheel/ended.txt" \
    PYTHONPATH="$of_wheel/site:$folder/site" \
    "$(command -v qemu-aarch64)" -L "$folder/python" "$folder/python/usr/bin/$version" \
    -m pytest --suite main -p resumed -p no:cacheprovider "${ignored[@]}" "$@"
