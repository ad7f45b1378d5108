"""`python -m sandman` is the command line."""

import sys

from sandman.cli import main

sys.exit(main())
