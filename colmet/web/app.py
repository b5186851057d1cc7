"""Build the web application: the page, the JSON interface, its description, and the answers to failed requests."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Optional

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from colmet import __version__
from colmet.web import parameters
from colmet.web.access import Access
from colmet.web.archive_routes import ArchiveRoutes, has_archive, is_archived
from colmet.web.files import FOLDER, INDEX, MAX_AGE_S, file_answer, read_files
from colmet.web.limits import Busy
from colmet.web.middleware import RequestFilter, too_many
from colmet.web.openapi import described
from colmet.web.queries import Queries
from colmet.web.responses import failure, pack, to_json
from colmet.web.routes import Routes, accepts_gzip
from colmet.web.stored_routes import Stored, StoredRoutes


def build_app(
    queries: Queries,
    access: Access,
    *,
    stored: Stored = Stored(),  # noqa: B008 - a tuple
    gridengine: bool = False,
    connections: Callable[[], int] = lambda: 0,
    hosts: Optional[frozenset[str]] = None,
    client: Callable[[Mapping[str, Any]], str] = lambda scope: str((scope.get("client") or ("",))[0]),
    folder: Path = FOLDER,
    fresh_files: bool = False,
) -> FastAPI:
    """Return the ASGI application.

    Args:
        queries: answers the queries.
        access: authenticates requests.
        stored: reads the store; None without a readable store.
        gridengine: whether /qhost and /qstat serve Grid Engine's hosts and jobs.
        connections: returns the number of open connections.
        hosts: names allowed in Host headers; None for any.
        client: returns the client of a request from its scope.
        folder: folder of the page's files.
        fresh_files: whether to read them for every request, for editing the page.
    """
    app = FastAPI(title="Colmet", version=__version__, openapi_url=None, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    known = (partial(has_archive, stored.archive), partial(is_archived, stored.archive))
    routes = Routes(queries, access, gridengine, connections, *known)
    routes.add_to(app)
    archived = ArchiveRoutes(routes, stored.archive)
    StoredRoutes(routes, stored, archived.workers).add_to(app)
    archived.add_to(app)
    files = read_files(folder)
    description = b""

    def file(name: str, request: Request, max_age_s: int) -> Response:
        found = (read_files(folder) if fresh_files else files).get(name)
        if found is None:
            raise HTTPException(404, "there is no such file")
        known = request.headers.get("if-none-match", "")
        return file_answer(found, accepts_gzip(request), known, max_age_s)

    async def index(request: Request) -> Response:
        return file(INDEX, request, 0)

    async def static(request: Request, path: str = parameters.FILE) -> Response:
        return file(path, request, MAX_AGE_S if path.startswith("vendor/") else 0)

    async def openapi(request: Request) -> Response:
        nonlocal description
        if not description:  # rarely requested, and slow to build
            description = to_json(described(app, access.is_open))
        return pack(description, accepts_gzip(request))

    for path, endpoint in {"/": index, "/static/{path:path}": static, "/openapi.json": openapi}.items():
        app.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False)
    for error in (RequestValidationError, HTTPException, Busy):
        app.add_exception_handler(error, _failed)
    app.add_middleware(RequestFilter, access=access, hosts=hosts, client=client)
    return app


async def _failed(_request: Request, err: Exception) -> Response:
    if isinstance(err, Busy):
        return too_many(err)
    if isinstance(err, RequestValidationError):
        texts = [f"{error['loc'][-1]}: {error['msg']}" for error in err.errors()[:5]]
        return failure(400, f"a value cannot be used: {'; '.join(texts)}")
    if not isinstance(err, HTTPException):
        raise err
    text = str(err.detail)
    if err.status_code == 404 and text == "Not Found":
        text = "there is nothing at this address; /openapi.json lists all addresses"
    return failure(err.status_code, text, getattr(err, "headers", None))  # starlette 0.18 has no such attribute
