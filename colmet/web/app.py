"""Build the web application: the page, the JSON interface, its description, and the answers to failed requests."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Optional

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from colmet import __version__
from colmet.web.access import Access
from colmet.web.archive_routes import ArchiveRoutes, has_archive, is_archived
from colmet.web.gate import Gate, too_many
from colmet.web.login import LoginRoutes
from colmet.web.openapi import described
from colmet.web.queries import Queries
from colmet.web.responses import encoded, failure, to_json
from colmet.web.routes import Routes
from colmet.web.stored_routes import Stored, StoredRoutes
from colmet.web.workers import Busy

FOLDER = Path(__file__).parent / "static"
PACKED_BYTES = 1024  # shorter answers are not compressed
LEVEL = 4  # of gzip: higher ones are slow and save little


def build_app(
    queries: Queries,
    access: Access,
    *,
    stored: Stored = Stored(),  # noqa: B008 - a tuple
    gridengine: bool = False,
    connections: Callable[[], int] = lambda: 0,
    hosts: Optional[list[str]] = None,
    folder: Path = FOLDER,
) -> FastAPI:
    """Return the ASGI application.

    Args:
        queries: answers the queries.
        access: authenticates requests.
        stored: reads the store; None without a readable store.
        gridengine: whether /qhost and /qstat serve Grid Engine's hosts and jobs.
        connections: returns the number of open connections.
        hosts: names and addresses allowed in Host headers; None for any. Protects an open interface for this machine
            only from web pages with a name that resolves to this machine (DNS rebinding).
        folder: folder of the page's files.
    """
    app = FastAPI(title="Colmet", version=__version__, openapi_url=None, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    known = (partial(has_archive, stored.archive), partial(is_archived, stored.archive))
    routes = Routes(queries, access, gridengine, connections, *known)
    routes.add_to(app)
    archived = ArchiveRoutes(routes, stored.archive)
    StoredRoutes(routes, stored, archived.workers).add_to(app)
    archived.add_to(app)
    LoginRoutes(access).add_to(app)
    description = b""

    async def index(_request: Request) -> Response:
        return FileResponse(folder / "index.html")

    async def openapi(_request: Request) -> Response:
        nonlocal description
        if not description:  # rarely requested, and slow to build
            description = to_json(described(app, access.is_open))
        return encoded(description)

    for path, endpoint in {"/": index, "/openapi.json": openapi}.items():
        app.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False)
    app.mount("/static", StaticFiles(directory=folder))
    for error in (RequestValidationError, HTTPException, Busy):
        app.add_exception_handler(error, _failed)
    # The last one is the outermost.
    app.add_middleware(GZipMiddleware, minimum_size=PACKED_BYTES, compresslevel=LEVEL)
    if hosts is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.add_middleware(Gate, access=access)
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
    return failure(err.status_code, text, err.headers)
