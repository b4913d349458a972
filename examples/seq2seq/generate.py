"""Write targets with a model of train.py.

python examples/seq2seq/generate.py runs/demo.safetensors dynamic batching
"""

import argparse
import sys
from pathlib import Path

from dynbatch import train

sys.path.insert(0, str(Path(__file__, "../../..").resolve()))  # finds `examples` from any folder
from examples.seq2seq.train import Translator


def main(argv=None):
    """Print each source and its target."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("sources", nargs="*", help="or the lines of standard input")
    parser.add_argument("--num-beams", type=int, default=1)
    options = parser.parse_args(argv)
    model = Translator(**train.read_checkpoint(options.checkpoint).extra)
    train.load_checkpoint(options.checkpoint, model)
    sources = options.sources or sys.stdin.read().splitlines()
    if all([len(entry) == 1 for entry in model.source.entries]):
        texts = [" ".join(source) for source in sources]  # it reads letters
    else:
        texts = sources
    written = model.translate(texts, num_beams=options.num_beams)
    for source, words in zip(sources, written, strict=True):
        print(f"{source}\t{' '.join(words)}")


if __name__ == "__main__":
    main()
