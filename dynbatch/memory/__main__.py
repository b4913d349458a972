"""`python -m dynbatch.memory DATA`: what a model holds with padding and without (`--help`).

The command stands above this layer, as all it measures with; so it is looked up when it is run.
"""

import importlib
import sys

if __name__ == "__main__":
    sys.exit(importlib.import_module("dynbatch.padding.command").memory())
