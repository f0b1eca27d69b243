"""The page at `/`: the models, a form that tries one, and live figures. It asks the server as any other client does."""

import pathlib

from fluid.serving.replies import Reply
from fluid.serving.request import Request

_FOLDER = pathlib.Path(__file__).parent / "static"
# The page loads nothing from elsewhere, and nobody else may frame it.
_POLICY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}


async def html(request: Request) -> Reply:
    """The page."""
    return _file("page.html", "text/html; charset=utf-8")


async def script(request: Request) -> Reply:
    """What it does."""
    return _file("page.js", "text/javascript; charset=utf-8")


async def style(request: Request) -> Reply:
    """How it looks."""
    return _file("page.css", "text/css; charset=utf-8")


def _file(name: str, content_type: str) -> Reply:
    return Reply((_FOLDER / name).read_bytes(), content_type=content_type, headers=_POLICY)
