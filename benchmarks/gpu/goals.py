"""Goals of dynbatch on an H100 or H200, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.measure import OURS

Parts = Mapping[str, Any]

SPEED = {  # times as fast, in the precision of the peer
    "tagger": {"pytorch-packed": 1.0},
    "seq2seq": {"pytorch-padded": 3.0},
    "tree": {"pytorch-levels": 3.0},
    "transformer": {"pytorch-padded": 1.5, "pytorch-varlen": 0.5},
}
MEMORY = {"seq2seq": ("pytorch-padded", 0.3)}  # of the peer's peak
GENERATION = 3.0  # times the tokens of padded rows
HOST = 0.1  # of a step alone
BUSY = ("speed, seq2seq B=128 H=512", 0.7)


def goals(parts: Parts) -> Iterator[str]:
    """A line for each goal whose measurement is there."""
    for name, part in parts.items():
        found, workload = part["found"], name.split(", ")[-1].split()[0]
        if name.startswith("speed") and found:
            for peer, least in SPEED.get(workload, {}).items():
                if peer in found["sides"]:
                    what, ratio = (
                        f"{found['case']}: speed, times {peer}",
                        found["sides"][peer]["ratio"],
                    )
                    yield line(what, ratio, f">= {least}", ratio >= least)
            if (host := found["sides"][OURS].get("host_share")) is not None:
                yield line(f"{found['case']}: host's share", host, f"<= {HOST}", host <= HOST)
        if name == BUSY[0] and found and (busy := found["sides"][OURS].get("busy")) is not None:
            yield line(f"{found['case']}: busy", busy, f">= {BUSY[1]}", busy >= BUSY[1])
        if name == "generation" and "ratio" in found.get("many", ()):
            ratio = found["many"]["ratio"]
            yield line("generation, times padded", ratio, f">= {GENERATION}", ratio >= GENERATION)
    used = {
        (part["found"]["case"], part["found"]["side"]): part["found"]["used_bytes"]
        for name, part in parts.items()
        if name.startswith("memory") and "used_bytes" in part["found"]
    }
    for (case, side), ours in used.items():
        peer, most = MEMORY.get(case.split()[0], ("", 0.0))
        if side == OURS and (case, peer) in used:
            share = ours / used[case, peer]
            yield line(f"{case}: peak memory, share of {peer}", share, f"<= {most}", share <= most)


def line(what: str, number: float, goal: str, is_reached: bool) -> str:
    """Whether a goal is reached, and by what number."""
    return f"{'reached' if is_reached else 'MISSED ':8} {what} {number:.2f} (goal {goal})"
