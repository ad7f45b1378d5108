"""The calls on files. Paths travel in the query exactly as the caller encoded them: decoding and encoding again here would be one
more place to get a strange name wrong. The daemon resolves them, under the rights of the sandbox's user."""

from typing import Any, Final

from litestar import Controller, Request, delete, get, post, put, route
from litestar.params import FromPath
from litestar.types import ASGIApp, Receive, Scope, Send

from app.auth.middleware import caller_of
from app.body import read
from app.describe import Doc, opt
from app.files.schemas import LinkFile, MakeFolder, MoveFile
from app.gateway.relay import Call
from app.query import Parameter
from app.services import services_in

JSON_BYTES_MAX: Final = 64 * 1024

PATH: Final = Parameter("path", "Absolute, or relative to the working directory", required=True)
USER: Final = Parameter("user", "Whose rights; left out: the sandbox's user")

GET_DOC: Final = Doc(
    id="getFile",
    summary="Read a file",
    tag="files",
    query=(PATH, USER),
    answers=((200, "The bytes", bytes), (206, "The range that was asked for", bytes)),
)
HEAD_DOC: Final = Doc(
    id="headFile",
    summary="A file's size and times",
    tag="files",
    query=(PATH, USER),
    answers=((200, "It is there", None),),
)
PUT_DOC: Final = Doc(
    id="putFile",
    summary="Write a file, whole or not at all",
    tag="files",
    body=bytes,
    query=(
        PATH,
        USER,
        Parameter("mode", "Octal"),
        Parameter("owner", "Name or uid:gid"),
        Parameter("parents", "", "boolean"),
    ),
    answers=((200, "Replaced", dict[str, Any]), (201, "Made", dict[str, Any])),
)
DELETE_DOC: Final = Doc(
    id="deleteFile",
    summary="Delete a file or folder",
    tag="files",
    query=(PATH, USER, Parameter("recursive", "Folders with what is in them", "boolean")),
    answers=((200, "Deleted", dict[str, Any]),),
)
LIST_DOC: Final = Doc(
    id="listFiles",
    summary="List a folder",
    tag="files",
    query=(
        PATH,
        USER,
        Parameter("depth", "", "integer"),
        Parameter("limit", "", "integer"),
        Parameter("cursor", ""),
    ),
    answers=((200, "One page", dict[str, Any]),),
)
STAT_DOC: Final = Doc(
    id="statFile",
    summary="One entry",
    tag="files",
    query=(PATH, USER),
    answers=((200, "The entry", dict[str, Any]),),
)
WATCH_DOC: Final = Doc(
    id="watchFiles",
    summary="Changes under a folder, as they happen",
    tag="files",
    query=(PATH, USER),
    answers=((200, "Lines of JSON", bytes),),
)
MOVE_DOC: Final = Doc(
    id="moveFile",
    summary="Move or rename",
    tag="files",
    body=MoveFile,
    answers=((200, "The entry", dict[str, Any]),),
)
MKDIR_DOC: Final = Doc(
    id="makeFolder",
    summary="Make a folder",
    tag="files",
    body=MakeFolder,
    answers=((201, "The entry", dict[str, Any]),),
)
LINK_DOC: Final = Doc(
    id="linkFile",
    summary="Make a link",
    tag="files",
    body=LinkFile,
    answers=((201, "The entry", dict[str, Any]),),
)
ARCHIVE_GET_DOC: Final = Doc(
    id="getArchive",
    summary="A folder as a tar stream",
    tag="files",
    query=(PATH, USER),
    answers=((200, "The tar stream", bytes),),
)
ARCHIVE_PUT_DOC: Final = Doc(
    id="putArchive",
    summary="Unpack a tar stream into a folder",
    tag="files",
    body=bytes,
    query=(PATH, USER),
    answers=((200, "Unpacked", dict[str, Any]),),
)


class FileController(Controller):
    path = "/v1/sandboxes/{sandbox_id:str}"

    @get("/files", opt=opt(GET_DOC))
    async def read_file(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        return await _ask(request, sandbox_id, b"GET", b"/v1/files")

    @route("/files", http_method=["HEAD"], opt=opt(HEAD_DOC))
    async def head_file(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        return await _ask(request, sandbox_id, b"HEAD", b"/v1/files")

    @put("/files", opt=opt(PUT_DOC))
    async def write_file(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        return await _upload(request, sandbox_id, b"/v1/files")

    @delete("/files", status_code=200, opt=opt(DELETE_DOC))
    async def delete_file(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        return await _ask(request, sandbox_id, b"DELETE", b"/v1/files")

    @get("/files/list", opt=opt(LIST_DOC))
    async def list_files(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        return await _ask(request, sandbox_id, b"GET", b"/v1/files/list")

    @get("/files/stat", opt=opt(STAT_DOC))
    async def stat_file(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        return await _ask(request, sandbox_id, b"GET", b"/v1/files/stat")

    @get("/files/watch", opt=opt(WATCH_DOC))
    async def watch_files(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        return await _ask(request, sandbox_id, b"GET", b"/v1/files/watch")

    @post("/files/move", status_code=200, opt=opt(MOVE_DOC))
    async def move_file(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        return await _tell(request, sandbox_id, b"/v1/files/move")

    @post("/files/mkdir", opt=opt(MKDIR_DOC))
    async def make_folder(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        return await _tell(request, sandbox_id, b"/v1/files/mkdir")

    @post("/files/link", opt=opt(LINK_DOC))
    async def link_file(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        return await _tell(request, sandbox_id, b"/v1/files/link")

    @get("/archive", opt=opt(ARCHIVE_GET_DOC))
    async def read_archive(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        return await _ask(request, sandbox_id, b"GET", b"/v1/archive")

    @put("/archive", opt=opt(ARCHIVE_PUT_DOC))
    async def write_archive(self, request: Request[Any, Any, Any], sandbox_id: FromPath[str]) -> ASGIApp:
        return await _upload(request, sandbox_id, b"/v1/archive")


def _target(request: Request[Any, Any, Any], path: bytes) -> bytes:
    query: bytes = request.scope["query_string"]
    return path + b"?" + query if query else path


async def _ask(request: Request[Any, Any, Any], sandbox_id: str, method: bytes, path: bytes) -> ASGIApp:
    """A call without a body."""
    services = services_in(request.app.state)
    await read(request.receive, JSON_BYTES_MAX)
    found = await services.gateway.routes.find(sandbox_id, caller_of(request.scope).tenant)
    # A repeated delete would answer 404 for what the first one did.
    call = Call(method, _target(request, path), repeatable=method != b"DELETE")

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await services.gateway.forward(scope, receive, send, found, call)

    return answer


async def _tell(request: Request[Any, Any, Any], sandbox_id: str, path: bytes) -> ASGIApp:
    """A call with a small JSON body, which the daemon reads."""
    services = services_in(request.app.state)
    body = await read(request.receive, JSON_BYTES_MAX)
    found = await services.gateway.routes.find(sandbox_id, caller_of(request.scope).tenant)
    call = Call(b"POST", _target(request, path), body)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await services.gateway.forward(
            scope, receive, send, found, call, [(b"Content-Type", b"application/json")]
        )

    return answer


async def _upload(request: Request[Any, Any, Any], sandbox_id: str, path: bytes) -> ASGIApp:
    """A call whose body streams; it is not read before the sandbox is found."""
    services = services_in(request.app.state)
    found = await services.gateway.routes.find(sandbox_id, caller_of(request.scope).tenant)
    call = Call(b"PUT", _target(request, path))

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await services.gateway.upload(scope, receive, send, found, call)

    return answer
