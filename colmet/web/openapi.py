"""Describe the JSON interface by OpenAPI."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from colmet.jobs.archive.queries import GROUPS, SORTS, SPANS
from colmet.jobs.columns import STATES
from colmet.web import archive_models, health_models, models
from colmet.web.archive_models import VALUES
from colmet.web.parameters import CHOICES, JOB_SORTS, NODE_SORTS, ZONE_NAME

MODELS = (models, archive_models, health_models)
DESCRIPTION = """What jobs and nodes use, as colmet-collector receives it from the nodes and stores it.

Times are seconds since 1970, sizes bytes, shares 0 to 1; a missing value is null. Ordinary users see their own jobs and
the nodes of these jobs; administrators see all."""


def _error(text: str, header: str = "", kind: str = "string") -> dict[str, Any]:
    headers = {"headers": {header: {"schema": {"type": kind}}}} if header else {}
    return {"model": models.Error, "description": text, **headers}


ERRORS: dict[Any, dict[str, Any]] = {
    400: _error("A value cannot be used."),
    401: _error("The login is missing or wrong.", "WWW-Authenticate"),
    403: _error("The question is for jobs that the user may not see."),
    405: _error("Only GET and HEAD are answered.", "Allow"),
    429: _error("Too many requests at once.", "Retry-After", "integer"),
}
NOT_FOUND: dict[Any, dict[str, Any]] = {404: _error("Not found, or access denied.")}
REPORTS: dict[Any, dict[str, Any]] = {
    501: _error("The server lacks a Python module; the text has the remedy."),
    503: _error("The store cannot be read, or not with the permitted memory."),
}
ARCHIVE: dict[Any, dict[str, Any]] = {503: _error("The archive cannot be read.")}
PAGE: dict[Any, dict[str, Any]] = {200: {"content": {"text/html": {"schema": {"type": "string"}}}}}
PICTURE: dict[Any, dict[str, Any]] = {
    200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}
}
_ARCHIVED = ("/api/v1/archive/jobs", "/api/v1/usage", "/api/v1/report", "/api/v1/report.html")
_NUMBERS = "^([1-9][0-9]{0,17}(,[1-9][0-9]{0,17})*)?$"
_EXAMPLES = {True: "cgroup_default.cpu_usage", False: "procstats_default.loadavg_1min"}


def described(app: FastAPI, is_open: bool) -> dict[str, Any]:
    """Return FastAPI's description with corrections; with `is_open`, requests need no login."""
    description = get_openapi(title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes)
    schemas = description["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    if description["openapi"].startswith("3.0"):  # from pydantic 1, without null
        for name, schema in schemas.items():
            _add_nulls(next(getattr(one, name) for one in MODELS if hasattr(one, name)), schema)
    for path, methods in description["paths"].items():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            content = operation["responses"]["200"]["content"]
            if "text/html" in content or "image/png" in content:
                content.pop("application/json", None)
            for parameter in operation.get("parameters", []):
                name, schema = parameter["name"], parameter["schema"]
                if path in _ARCHIVED:
                    _describe_archived(name, schema)
                elif name == "sort":
                    schema["enum"] = list(JOB_SORTS if path.endswith("/jobs") else NODE_SORTS)
                elif name in CHOICES:
                    schema["enum"] = list(CHOICES[name])
                elif name == "metric":
                    schema["pattern"] = r"^[^.]+\..+$"
                    parameter["example"] = _EXAMPLES["/jobs/" in path]
                elif name == "zone":
                    schema["pattern"] = f"^{ZONE_NAME}$"
                elif name == "table":
                    parameter["example"] = "cgroup_default"
                elif name == "after":
                    schema["pattern"] = r"^$|^[0-9]{1,15}\.[0-9]{1,15}\.[^\n]+$"
                elif name == "job" and parameter["in"] == "query":
                    schema["pattern"] = _NUMBERS
                elif name == "job":
                    schema["format"] = "int64"
    if not is_open:
        description["components"]["securitySchemes"] = {
            "basic": {"type": "http", "scheme": "basic"},
            "token": {"type": "http", "scheme": "bearer"},
        }
        description["security"] = [{"basic": []}, {"token": []}]
    return description


def _describe_archived(name: str, schema: dict[str, Any]) -> None:
    """Add the accepted texts of a parameter of the archive's lists."""
    if name == "sort":
        schema["enum"] = list(SORTS)
    elif name == "job":
        schema["pattern"] = _NUMBERS
    elif name in ("state", "columns"):
        one = f"({'|'.join(STATES if name == 'state' else VALUES)})"
        schema["pattern"] = f"^({one}(,{one})*)?$"
    elif name == "by":
        word, span = [f"({'|'.join(some)})" for some in ([one for one in GROUPS if one not in SPANS], SPANS)]
        schema["pattern"] = f"^({word}(,{word}){{0,2}}|({word},){{0,2}}{span})$"


def _add_nulls(model: Any, schema: dict[str, Any]) -> None:
    """Mark the nullable values of a model, as in OpenAPI 3.0."""
    for name, field in model.__fields__.items():
        inner = schema["properties"][name]
        if field.allow_none:
            inner["nullable"] = True
        for sub in field.sub_fields or []:
            if sub.allow_none and "items" in inner:
                inner["items"]["nullable"] = True
