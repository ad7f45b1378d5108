"""Bodies of the file calls, for the API's description only: the daemon reads them itself."""

import msgspec


class MoveFile(msgspec.Struct, rename={"source": "from"}):
    """Body of POST …/files/move."""

    source: str
    """What is moved: absolute, or relative to the working directory."""
    to: str
    """The new name itself, also when it is a folder."""
    overwrite: bool = False
    """Replace what is there; otherwise that is a conflict."""
    parents: bool = True
    """Make missing folders above it."""


class MakeFolder(msgspec.Struct):
    """Body of POST …/files/mkdir."""

    path: str
    """Absolute, or relative to the working directory."""
    mode: str = "0755"
    """Octal."""
    parents: bool = True
    """Make missing folders above it, and be content with one that is there."""


class LinkFile(msgspec.Struct):
    """Body of POST …/files/link."""

    target: str
    """What it leads to: kept as given in a symbolic link, a path for a hard one."""
    path: str
    """The link: absolute, or relative to the working directory."""
    symbolic: bool = True
    """False: a hard link."""
    overwrite: bool = False
    """Replace what is there; otherwise that is a conflict."""
    parents: bool = True
    """Make missing folders above it."""
