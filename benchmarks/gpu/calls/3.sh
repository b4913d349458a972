#!/usr/bin/env bash
# What is checked: all tests, values and bits at full size, compute-sanitizer; then the switches of
# the other cases. At most ten minutes.
#
#     OUT=FOLDER benchmarks/gpu/calls/3.sh FOLDER OF THE LAST cache.txz
source "$(dirname "${BASH_SOURCE[0]}")/begin.sh" "$@"

part "check" 345 "$PYTHON" -m benchmarks.gpu.check --only tests correct sanitizer --limit 330 --keep "$OUT"
keep_kernels
part "switches, seq2seq" 80 "$PYTHON" -m benchmarks.gpu.switches --workload seq2seq --rounds 3
part "switches, transformer" 80 "$PYTHON" -m benchmarks.gpu.switches --workload transformer --rounds 3
part "switches, tree" 70 "$PYTHON" -m benchmarks.gpu.switches --workload tree --hidden 150 --rounds 3
