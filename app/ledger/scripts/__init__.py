"""Loads the Lua scripts: one file each, every one preceded by `prelude.lua`, which holds what they share.

KEYS[1] is always the namespace prefix: the other keys are computed from it inside the scripts. That is allowed because the ledger
does not run on a Redis cluster; in return one script can touch a record, its queue, its run and the counts in one step.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


@cache
def script_text(name: str) -> str:
    """The whole text that Redis gets for the script `name`."""
    prelude = (_FOLDER / "prelude.lua").read_text("utf-8")
    return prelude + "\n" + (_FOLDER / f"{name}.lua").read_text("utf-8")


def script_names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.lua") if path.stem != "prelude")
