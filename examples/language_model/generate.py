"""Continue a beginning with a model of train.py, or make documents up.

python examples/language_model/generate.py runs/language-model.safetensors "Once"
"""

import argparse
import sys
from pathlib import Path

from dynbatch import train

sys.path.insert(0, str(Path(__file__, "../../..").resolve()))  # finds `examples` from any folder
from examples.language_model.train import GPT, write


def main(argv=None):
    """Print each continuation."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("beginning", nargs="?", default="")
    parser.add_argument("-n", type=int, default=3, help="continuations")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    model = GPT(**train.read_checkpoint(options.checkpoint).extra)
    train.load_checkpoint(options.checkpoint, model)
    how = {"temperature": options.temperature, "seed": options.seed}
    for text in write(model, options.beginning, num_return_sequences=options.n, **how):
        print(text)


if __name__ == "__main__":
    main()
