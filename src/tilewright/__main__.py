"""The command line as a program: `python -m tilewright`, and the script `tilewright`."""

import os
import sys

try:
    from tilewright.cli.main import main
except KeyboardInterrupt:
    # Nothing has begun, and nobody wants to read where the imports were.
    os._exit(130)

if __name__ == "__main__":
    sys.exit(main())
