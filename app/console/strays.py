"""What a person gets who comes by an address that leads nowhere: a page instead of the API's JSON.

Only for a browser that opens a page (it asks for HTML by name), and never below the API's own paths.
"""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response

from app.console.pages import BASE_HEADERS
from app.console.service import console_in

_API: Final = ("/v1/", "/schema/", "/health/", "/metrics")


def opens_a_page(request: Request[Any, Any, Any]) -> bool:
    return (
        request.method == "GET"
        and "text/html" in request.headers.get("accept", "")
        and not request.url.path.startswith(_API)
    )


def stray_page(request: Request[Any, Any, Any]) -> Response[str]:
    answer = console_in(request.app).problem_answer(404, "Not found", "There is no such page.")
    answer.headers.update(BASE_HEADERS)
    return answer
