"""What the fields of a body mean, read from the strings below them in its class, for the API's description."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec


def structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """`kind` itself and every struct that its fields hold, however deep."""
    seen: set[type] = set()
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        waiting.extend(get_args(one))
        if isinstance(one, type) and issubclass(one, msgspec.Struct) and one not in seen:
            seen.add(one)
            waiting.extend(get_type_hints(one).values())
            yield one


def field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Name on the wire → the string below the field. A checkout and a wheel carry the source; without it nothing is said."""
    names = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not issubclass(owner, msgspec.Struct) or owner is msgspec.Struct:
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        except (OSError, TypeError):
            continue
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[names[name]] = inspect.cleandoc(text)
    return found
