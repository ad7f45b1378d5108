"""Query parameters, read strictly: each has one meaning, an unknown one is a spelling mistake that is told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from litestar.types import Scope

from app.problems import invalid

_TRUE: Final = frozenset({"1", "true", "yes"})
_FALSE: Final = frozenset({"0", "false", "no"})
# Far more than any call here takes, few enough to be read without thought.
_PARAMETERS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter, for the API's description and for reading it."""

    name: str
    description: str
    kind: str = "string"
    """JSON type: string, number, integer or boolean."""
    low: float | None = None
    high: float | None = None
    required: bool = False
    many: bool = False
    """May be given more than once."""

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": self.kind}
        if self.low is not None:
            schema["minimum"] = self.low
        if self.high is not None:
            schema["maximum"] = self.high
        return {"type": "array", "items": schema} if self.many else schema


class Query:
    """The parameters of one request, all of them declared."""

    def __init__(self, scope: Scope, declared: tuple[Parameter, ...]) -> None:
        self._values: dict[str, list[str]] = {}
        raw: bytes = scope["query_string"]
        if not raw:
            return
        by_name = {parameter.name: parameter for parameter in declared}
        try:
            pairs = parse_qsl(
                raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_PARAMETERS_MAX
            )
        except (UnicodeDecodeError, ValueError):
            raise invalid(("", "the query is not percent-encoded UTF-8")) from None
        for name, value in pairs:
            parameter = by_name.get(name)
            if parameter is None:
                known = ", ".join(by_name) or "none"
                raise invalid((name[:100], f"is not a known query parameter (known: {known})"))
            values = self._values.setdefault(name, [])
            if values and not parameter.many:
                raise invalid((name, "is given twice"))
            if "\0" in value:
                raise invalid((name, "must not hold NUL"))
            values.append(value)

    def many(self, name: str) -> list[str]:
        return self._values.get(name, [])

    def text(self, name: str) -> str | None:
        values = self._values.get(name)
        return values[0] if values else None

    def number(self, parameter: Parameter, default: float) -> float:
        text = self.text(parameter.name)
        if text is None:
            return default
        try:
            value = float(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            value = math.nan
        low = -math.inf if parameter.low is None else parameter.low
        high = math.inf if parameter.high is None else parameter.high
        whole = parameter.kind != "integer" or value == int(value if math.isfinite(value) else 0)
        if not (math.isfinite(value) and low <= value <= high and whole):
            what = "a whole number" if parameter.kind == "integer" else "a number"
            raise invalid((parameter.name, f"must be {what} from {low:g} to {high:g}"))
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise invalid((name, "must be true or false"))


WAIT: Final = Parameter("wait", "Wait up to so many seconds", "number", 0, 600)
LIMIT: Final = Parameter("limit", "At most so many items", "integer", 1, 500)
CURSOR: Final = Parameter("cursor", "`next` of the page before")


def cursor_of(query: Query) -> str | None:
    """The cursor, which is opaque to callers and plain digits to us."""
    cursor = query.text("cursor")
    if cursor is not None and not (
        cursor.isascii() and len(cursor) <= 64 and cursor.replace("-", "").isdigit()
    ):
        raise invalid(("cursor", "is not a cursor that this service gave"))
    return cursor
