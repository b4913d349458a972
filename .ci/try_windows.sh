#!/usr/bin/env bash
# try_windows.sh WINDOWS_WHEEL LINUX_WHEEL: loads each library of the first under Wine (Debian's package
# wine64), and compares what products, gelu and rounding to 16 bits give with the second's, bit for bit.
# No Python for Windows is at hand here: kernels that share work among threads are not started.
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export WINEPREFIX="$work/prefix" WINEDEBUG=-all
"$python" -m ziglang cc -target x86_64-windows-gnu -O1 .ci/try_library.c -o "$work/windows.exe"
"$python" -m ziglang cc -O1 .ci/try_library.c -o "$work/linux"
for system in windows linux; do
    "$python" -m zipfile -e "${1:?the wheel of Windows and that of Linux}" "$work/$system.wheel"
    shift
done
wine wineboot -i >"$work/boot.log" 2>&1 || { cat "$work/boot.log"; exit 1; }
for level in $(ls "$work/linux.wheel/dynbatch/kernels/c/compiled"); do
    of=dynbatch/kernels/c/compiled/$level
    grep -q avx512 /proc/cpuinfo || [ "${level#*v4}" = "$level" ] || continue
    echo "$level:"
    (cd "$work/windows.wheel" && wine ../windows.exe "$of"/*.so) | tr -d '\r' | tee "$work/windows.txt"
    (cd "$work/linux.wheel" && ../linux "$of"/*.so) >"$work/linux.txt"
    diff "$work/windows.txt" "$work/linux.txt"
done
