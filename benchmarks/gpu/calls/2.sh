#!/usr/bin/env bash
# What is measured: training steps beside PyTorch in each precision, small pieces, generation, and
# the switches of one case. At most ten minutes.
#
#     OUT=FOLDER benchmarks/gpu/calls/2.sh FOLDER OF THE LAST cache.txz
source "$(dirname "${BASH_SOURCE[0]}")/begin.sh" "$@"

part "check" 450 "$PYTHON" -m benchmarks.gpu.check --only first speed micro generation --limit 430
keep_kernels
part "switches, tagger" 120 "$PYTHON" -m benchmarks.gpu.switches --workload tagger --rounds 3
keep_kernels
