"""Generate targets with a trained model: from arguments, a file, or standard input.

python -m examples.seq2seq.generate runs/demo padding dynamic --num-beams 5
dynbatch generate runs/demo padding dynamic --num-beams 5      # the same
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dynbatch.commands.main import main as command


def main(argv: Sequence[str] | None = None) -> int:
    """`dynbatch generate`. Returns its exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return command(["generate", *arguments])


if __name__ == "__main__":
    sys.exit(main())
