"""`sandman up` and `sandman keys`: this process becomes the service's own, wherever the service lies.

The client library must be importable in a training job without bringing the service's modules (named `app` and `worker`)
along; so they are not imported but put on the path of a new program.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import sandman


@dataclass(frozen=True)
class Module:
    name: str
    summary: str


MODULES = {
    "up": Module("worker.up", "start the whole service on this machine"),
    "keys": Module("worker.up.keys", "add, list and remove API keys of the service on this machine"),
}

NOT_INSTALLED = """\
sandman: the service is not installed here, only its client.
  pip install sandman              the client and the service
  ./sandman up                     in a checkout of the source
or set SANDMAN_SERVICE_ROOT to a folder that holds the service's `app` and `worker`.\
"""


def run(word: str, arguments: list[str]) -> int:
    """Replace this process by the service's program. Returns only when the service is not installed."""
    root = find_root()
    if root is None:
        print(NOT_INSTALLED, file=sys.stderr)
        return 1
    path = os.pathsep.join(part for part in (str(root), os.environ.get("PYTHONPATH", "")) if part)
    environment = {**os.environ, "PYTHONPATH": path}
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a file called worker.py where the user stands must not be taken for the service.
    os.execve(sys.executable, [sys.executable, "-P", "-m", MODULES[word].name, *arguments], environment)
    return 1


def find_root() -> Path | None:
    """SANDMAN_SERVICE_ROOT, else inside the installed package, else the checkout that this file is in."""
    named = os.environ.get("SANDMAN_SERVICE_ROOT")
    package = Path(sandman.__file__).resolve().parent
    candidates = [Path(named)] if named else [package / "_service", package.parent.parent]
    for candidate in candidates:
        if (candidate / "worker" / "up").is_dir() and (candidate / "app").is_dir():
            return candidate.resolve()
    return None
