"""`python -m dynbatch.memory DATA`: what a model holds with padding and without (`--help`)."""

import sys

from dynbatch import memory

if __name__ == "__main__":
    sys.exit(memory.main())
