# What the calls share; each of them sources it.
#
# $OUT is a folder, for everything that is to be kept. $1, or $CACHE, may be one with the cache.txz
# that an earlier call left in its $OUT; $PYTHON another Python than python3.
: "${OUT:?a folder for what is measured}"
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
CACHE=${1:-${CACHE:-}}
CACHE=${CACHE:+$(cd "$CACHE" && pwd)}
cd "$(dirname "${BASH_SOURCE[0]}")/../../.." || exit
PYTHON=${PYTHON:-python3}
CORES=$(nproc)
CUPY_CACHE_DIR=$(mktemp -d)
export OUT CUPY_CACHE_DIR PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 PATH="$PATH:/usr/local/cuda/bin"
[ -f "$CACHE/cache.txz" ] && tar -xJf "$CACHE/cache.txz" -C "$CUPY_CACHE_DIR"

# The card stays awake between processes while one holds it.
"$PYTHON" -c 'import time, cupy; cupy.zeros(1, "f"); time.sleep(900)' 2>>"$OUT/messages.txt" &
HOLDER=$!
trap 'kill $HOLDER 2>/dev/null; rm -rf "$CUPY_CACHE_DIR"' EXIT

# part NAME SECONDS COMMAND …: what it prints goes to results.txt as it comes, and the rest to
# messages.txt.
part() {
    local name=$1 seconds=$2 status
    shift 2
    echo "== $name" | tee -a "$OUT/results.txt" >>"$OUT/messages.txt"
    timeout -k 5 "$seconds" "$@" >>"$OUT/results.txt" 2>>"$OUT/messages.txt"
    status=$?
    tail -n 1 "$OUT/results.txt" | cut -c 1-2000
    echo "== $name: status $status" | tee -a "$OUT/results.txt"
    [ $status = 0 ] || tail -n 12 "$OUT/messages.txt" | cut -c 1-300
}

# The kernels that have been compiled, for the next call.
keep_kernels() {
    XZ_OPT='-1 -T0' tar -cJf "$OUT/cache.part" -C "$CUPY_CACHE_DIR" . &&
        mv "$OUT/cache.part" "$OUT/cache.txz"
}
