"""The command line `sandman`: a thin use of the client, plus the way into the service itself (`up`, `keys`).

Exit codes: a command's own code for `exec` and `run` (128+n after signal n, 124 when its time was up); 125 when Sandman itself
failed, 126 and 127 when the command could not be run or found; 2 for wrong usage; 130 after Ctrl-C; 1 for other failures.
"""

from sandman.cli.main import main

__all__ = ["main"]
