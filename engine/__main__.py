"""``python -m spanfold.engine`` is the command ``spanfold``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
