"""`python -m dynbatch`: the command `dynbatch` (`--help`)."""

import sys

from dynbatch.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
