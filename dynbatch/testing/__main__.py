"""Runs a dumped graph again: `python -m dynbatch.testing graph.npz`; see `replay`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.testing.replay import load_graph, replay


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay a file; 0 if every policy gives the same, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m dynbatch.testing",
        description="Run what graph.dump(path) wrote under every policy, against one by one.",
    )
    parser.add_argument("path")
    parser.add_argument("--policy", choices=["all", *POLICIES], default="all")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--check", action="store_true", help="also run every batch twice")
    parser.add_argument("--guard", action="store_true", help="also look for NaN and infinity")
    options_of = parser.parse_args(arguments)
    policies = tuple(POLICIES) if options_of.policy == "all" else (options_of.policy,)
    with load_graph(options_of.path, device=options_of.device) as loaded:
        print(f"{len(loaded.nodes)} nodes, dumped under {loaded.policy}, {loaded.graph.dtype}")
    options = {"device": options_of.device, "check": options_of.check, "guard": options_of.guard}
    report = replay(options_of.path, policies, **options)
    print(report or f"no difference under {', '.join(policies)}")
    return int(report is not None)


if __name__ == "__main__":
    sys.exit(main())
