"""What a route says about itself for the API's description, beside the handler that does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from app.query import Parameter

DOC: Final = "doc"
"""Key of a route's `Doc` in its `opt`."""


@dataclass(frozen=True, slots=True)
class Doc:
    """One operation, as app/openapi.py writes it down."""

    id: str
    summary: str
    tag: str
    answers: tuple[tuple[int, str, Any], ...]
    """(status, words, type of the JSON body; None: no body; bytes: a stream)."""
    body: Any = None
    """Type of the JSON body; bytes: a stream."""
    body_required: bool = True
    query: tuple[Parameter, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    description: str = ""


def opt(doc: Doc, *, public: bool = False) -> dict[str, Any]:
    """A route's `opt`. `public`: no key is needed."""
    return {DOC: doc, "public": True} if public else {DOC: doc}
