"""`python -m dynbatch.memory DATA`: a model's memory with padding and without (`--help`)."""

import runpy
import sys

if __name__ == "__main__":
    sys.argv.insert(1, "memory")
    runpy.run_module("dynbatch", run_name="__main__", alter_sys=True)
