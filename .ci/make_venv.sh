#!/bin/sh
# make_venv.sh DIR: a virtual environment with pip in it, from $PYTHON (default python3).
# Debian ships `python3 -m venv` without its pip unless python3-venv is installed; then the pip of
# the system installs one into the new environment.
set -eu

directory=$1
python=${PYTHON:-python3}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fail() {
    cat "$log" >&2
    echo "error: $1" >&2
    rm -rf "$directory"
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    fail "$python is not installed. Fix: install Python 3.11 or newer, or run make PYTHON=/path/to/python3."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "dynbatch needs Python 3.11 or newer, $python is $("$python" -V). Fix: make PYTHON=python3.12 ..."

echo "Making a virtual environment in $directory ..."
if ! "$python" -m venv "$directory" >"$log" 2>&1; then
    rm -rf "$directory"
    { "$python" -m venv --without-pip "$directory" &&
        "$python" -m pip --python "$directory/bin/python" install --quiet pip; } >>"$log" 2>&1 ||
        fail "cannot make a virtual environment. Fix: apt-get install python3-venv (as root), then run make again."
fi
