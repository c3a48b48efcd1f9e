"""The files of the page, as they are in the package."""

from __future__ import annotations

from pathlib import Path

CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def page_files() -> dict[str, bytes]:
    """The files by their names below /static/: index.html, js/main.js and so on."""
    folder = Path(__file__).parent / "static"
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in CONTENT_TYPES and path.is_file()
    }


def content_type(name: str) -> str:
    """The content type of a file of the page."""
    return f"{CONTENT_TYPES[Path(name).suffix]}; charset=utf-8"
