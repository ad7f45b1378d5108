"""The gate in front of every console route: host, source, and the headers that no answer goes without.

It stands outside the handlers, so that a new route is protected without its author thinking of it.
"""

from litestar.datastructures import Headers, MutableScopeHeaders
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from app.console.origin import Refused, check_host, check_source, public_scheme
from app.console.pages import BASE_HEADERS
from app.console.service import console_in


class ConsoleShield(ASGIMiddleware):
    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        console = console_in(scope["app"])
        origins = console.settings.origins
        headers = Headers.from_scope(scope)
        host = headers.get("host", "")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                outgoing = MutableScopeHeaders.from_message(message)
                for name, value in BASE_HEADERS.items():
                    outgoing.setdefault(name, value)
            await send(message)

        try:
            check_host(host, origins)
            check_source(
                str(scope.get("method", "")),
                {name.lower(): value for name, value in headers.items()},
                scheme=public_scheme(host, str(scope["scheme"]), origins),
                public_origins=origins,
            )
        except Refused as refused:
            await console.problem_answer(403, "Refused", str(refused)).to_asgi_response(
                app=None, request=scope["app"].request_class(scope)
            )(scope, receive, send_with_headers)
            return
        await next_app(scope, receive, send_with_headers)
