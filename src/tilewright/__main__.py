"""`python -m tilewright`: the command line, for where the script `tilewright` is not on the path."""

import sys

from tilewright.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
