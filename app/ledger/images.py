"""What an image may be called: a pure check that the API applies before anything is written, and providers rely on.

Whether the image exists is another question, which only the provider can answer.
"""

from __future__ import annotations

import re

NAME_CHARACTERS_MAX = 512
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_DOMAIN = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*(?::[0-9]{1,5})?"
_REFERENCE = re.compile(
    rf"(?:(?P<domain>{_DOMAIN})/)?{_COMPONENT}(?:/{_COMPONENT})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
)


class ImageNameInvalid(ValueError):
    """The text cannot name an image anywhere; says what is wrong with it."""


def check_image_name(name: str) -> None:
    """`host`, a reference such as `python:3.12` or `registry.example:5000/team/task@sha256:…`, or an absolute path on the machine
    of a local provider. Raises ImageNameInvalid."""
    if not name:
        raise ImageNameInvalid("an image name must not be empty")
    if len(name) > NAME_CHARACTERS_MAX:
        raise ImageNameInvalid(f"an image name has at most {NAME_CHARACTERS_MAX} characters")
    if not name.isprintable():
        raise ImageNameInvalid("an image name must not hold control characters")
    if name.startswith("/"):
        _check_path(name)
        return
    match = _REFERENCE.fullmatch(name)
    # As container tools do: what stands before the first slash is a registry only if it looks like one.
    domain = match["domain"] if match else None
    if match is None or (
        domain is not None and domain != domain.lower() and "." not in domain and ":" not in domain
    ):
        raise ImageNameInvalid(
            "not an image name: it is `host`, a reference such as `python:3.12` (lower-case letters, digits and single separators), or "
            "an absolute path"
        )


def _check_path(path: str) -> None:
    parts = path.split("/")[1:]
    if any(part in ("", ".", "..") for part in parts):
        raise ImageNameInvalid(
            "an image path must be absolute and plain: without `.`, `..`, doubled or trailing slashes"
        )
