#!/usr/bin/env bash
# Does it run at all? The machine, all kernels, a training step, one case, the kernels' tests: about
# six minutes, nine at most.
#
#     OUT=FOLDER benchmarks/gpu/calls/1.sh [FOLDER OF AN EARLIER cache.txz]
source "$(dirname "${BASH_SOURCE[0]}")/begin.sh" "$@"

part "tools" 20 bash -c 'nvidia-smi; nproc; df -h "$OUT"; which cc g++ nvcc ncu compute-sanitizer'
part "machine" 120 "$PYTHON" -m benchmarks.gpu.machine
part "prewarm" 110 "$PYTHON" -m benchmarks.gpu.prewarm --processes $((CORES > 3 ? CORES - 2 : 1)) --switches 4
keep_kernels
part "first" 90 "$PYTHON" -m benchmarks.gpu.correct --workload tagger --batch 2 --hidden 8 --batches 1 --rounds 1
part "speed, tagger" 70 "$PYTHON" -m benchmarks.gpu.speed --workload tagger
part "tests" 130 "$PYTHON" -m benchmarks.gpu.suite tests/kernels/cuda --shards $((CORES > 5 ? CORES - 4 : 1)) --limit 120 --keep "$OUT/tests.txt"
keep_kernels
