"""`python -m dynbatch.memory DATA`: a model's memory with padding and without (`--help`)."""

import sys

from dynbatch import memory

if __name__ == "__main__":
    sys.exit(memory.main())
