"""The API's description at /schema/openapi.json, written from what each route says about itself.

One JSON document and no page around it: a page would load scripts from somewhere else, and this must be readable offline.
"""

import re
from functools import cache
from typing import Any, Final

import msgspec
from litestar import Litestar, Request, get
from litestar.types import ASGIApp

from app.answers import Answer
from app.describe import DOC, Doc, opt
from app.field_docs import field_docs, structs
from app.problems import KINDS, MEDIA_TYPE, URN, FieldError

API_VERSION: Final = "1"
_PARAMETER: Final = re.compile(r"\{(\w+):\w+\}")
_REF: Final = "#/components/schemas/{name}"

SCHEMA_DOC: Final = Doc(
    id="getOpenapi", summary="This document", tag="service", answers=((200, "OpenAPI 3.1", dict[str, Any]),)
)


class ProblemDocument(msgspec.Struct, frozen=True, rename={"request_id": "request_id"}):
    """RFC 9457, with members of our own. A type may have further members."""

    type: str
    title: str
    status: int
    retryable: bool
    cause: str
    detail: str = ""
    request_id: str = ""
    errors: list[FieldError] = []


@get("/schema/openapi.json", opt=opt(SCHEMA_DOC, public=True))
async def get_openapi(request: Request[Any, Any, Any]) -> ASGIApp:
    return Answer(200, [(b"content-type", b"application/json")], _encoded(request.app))


@cache
def _encoded(app: Litestar) -> bytes:
    return msgspec.json.encode(document(app))


def document(app: Litestar) -> dict[str, Any]:
    """The whole description, from the routes that carry a `Doc`."""
    found = [
        (route.path, method, handler.opt[DOC])
        for route in app.routes
        for handler in getattr(route, "route_handlers", None) or [getattr(route, "route_handler", None)]
        if handler is not None and DOC in handler.opt
        for method in sorted(getattr(handler, "http_methods", None) or {"GET"})
    ]
    types: list[Any] = [ProblemDocument]
    for _, _, doc in found:
        types.extend(_described(doc))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    for struct in {one: None for kind in types for one in structs(kind)}:
        for name, words in field_docs(struct).items():
            components[struct.__name__]["properties"][name]["description"] = words
    by_type = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for path, method, doc in found:
        plain = _PARAMETER.sub(r"{\1}", path)
        paths.setdefault(plain, {})[method.lower()] = _operation(plain, doc, by_type)
    types_known = {f"{URN}{slug}": kind.title for slug, kind in sorted(KINDS.items())}
    components["ProblemDocument"]["properties"]["type"]["examples"] = list(types_known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sandman",
            "version": API_VERSION,
            "summary": "Sandboxes for agentic reinforcement learning",
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _described(doc: Doc) -> list[Any]:
    kinds = [doc.body, *(kind for _, _, kind in doc.answers)]
    return [kind for kind in kinds if kind is not None and kind is not bytes]


def _operation(path: str, doc: Doc, by_type: dict[int, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    for parameter in doc.query:
        parameters.append(
            {
                "name": parameter.name,
                "in": "query",
                "required": parameter.required,
                "description": parameter.description,
                "schema": parameter.schema(),
            }
        )
    for name, words in doc.headers:
        parameters.append(
            {
                "name": name,
                "in": "header",
                "required": False,
                "description": words,
                "schema": {"type": "string"},
            }
        )
    operation: dict[str, Any] = {"operationId": doc.id, "summary": doc.summary, "tags": [doc.tag]}
    if doc.description:
        operation["description"] = doc.description
    if parameters:
        operation["parameters"] = parameters
    if doc.body is not None:
        operation["requestBody"] = {"required": doc.body_required, "content": _content(doc.body, by_type)}
    answers: dict[str, Any] = {}
    for status, words, kind in doc.answers:
        answers[str(status)] = (
            {"description": words, "content": _content(kind, by_type)} if kind else {"description": words}
        )
    problem = {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="ProblemDocument")}}}
    answers["default"] = {"description": "A problem", "content": problem}
    operation["responses"] = answers
    return operation


def _content(kind: Any, by_type: dict[int, Any]) -> dict[str, Any]:
    if kind is bytes:
        return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {"application/json": {"schema": by_type[id(kind)]}}
