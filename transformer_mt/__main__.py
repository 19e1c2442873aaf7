"""`python -m transformer_mt`."""

import sys

from transformer_mt.cli import main

if __name__ == "__main__":
    sys.exit(main())
