"""`python -m transformer_mt`."""

import sys
from pathlib import Path

if not __package__:
    # Paddle's launcher runs a file, whose folder Python then searches first: our modules would
    # stand in front of the library's of the same names.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from transformer_mt.cli import main

if __name__ == "__main__":
    sys.exit(main())
