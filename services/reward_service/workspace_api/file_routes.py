"""Routes of a workspace's files. What is read is untrusted: no browser shows it as a page."""

import re
from typing import Any, get_args
from urllib.parse import unquote_to_bytes

from fastapi import FastAPI, Request
from fastapi.responses import Response

from services.http.json_body import AsciiJson
from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import ArchiveKind, FileEntry, file_path
from services.reward_service.workspace_api.service import WorkspaceService
from services.reward_service.workspaces.errors import NoSuchFile
from services.reward_service.workspaces.workspace import Workspace

_KINDS = get_args(ArchiveKind)
_MODE = re.compile(r"[0-7]{3}")
_GUARDED = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; sandbox",
    "content-disposition": "attachment",
}
_BYTES = {
    "requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {}}}}
}
_SENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}, "application/x-tar": {}}}
}


def add_files(app: FastAPI, service: WorkspaceService) -> None:
    """Add upload, download, list and remove."""

    async def upload(request: Request, workspace_id: str, path: str = "") -> Response:
        """Write a file from the body, and the folders above it. `archive=tar`, `tar.gz` or `zip`
        unpacks the body into the folder instead."""
        where, mode, kind = _path(request, path), _mode(request), _kind(request)
        workspace = service.find(request)
        content = await service.body(request)
        if kind is not None:
            entries = await workspace.unpack(where, content, kind)
            return AsciiJson({"path": where, "entries": entries})
        await workspace.write(where, content, mode=mode)
        return AsciiJson({"path": where, "bytes": len(content)})

    async def download(request: Request, workspace_id: str, path: str = "") -> Response:
        """The bytes of a file; a folder as a tar."""
        where, workspace = _path(request, path), service.find(request)
        max_bytes = service.config.file_mb << 20
        try:
            content, kind = await workspace.read(where, max_bytes=max_bytes), "octet-stream"
        except NoSuchFile:
            raise
        except InvalidInput:
            if not await _is_folder(workspace, where):
                raise
            content, kind = await workspace.archive(where), "x-tar"
        return Response(content, media_type=f"application/{kind}", headers=_GUARDED)

    async def remove(request: Request, workspace_id: str, path: str) -> Response:
        """Remove a file, or a folder with all that is in it."""
        where = _path(request, path)
        await service.find(request).remove(where)
        return AsciiJson({"path": where})

    @app.get("/{workspace_id}/list", response_model=list[FileEntry])
    async def list_files(request: Request, workspace_id: str, path: str = ".") -> Response:
        """The entries of a folder by name, or the entry of a file."""
        entries = await service.find(request).list(_checked(path))
        return AsciiJson([one.model_dump() for one in entries])

    whole, named = "/{workspace_id}/files", "/{workspace_id}/files/{path:path}"
    for route in (whole, named):
        schema = route == named
        app.put(route, include_in_schema=schema, openapi_extra=_BYTES)(upload)
        app.get(route, include_in_schema=schema, responses=_SENT)(download)
    app.delete(named)(remove)


async def _is_folder(workspace: Workspace, path: str) -> bool:
    if path == ".":
        return True
    folder, _, name = path.rpartition("/")
    entries = await workspace.list(folder or ".")
    found = {one.path.rpartition("/")[2]: one.kind for one in entries}
    return found.get(name) == "folder"


def _path(request: Request, path: str) -> str:
    raw = request.scope.get("raw_path") or b""
    try:
        unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidInput("path", path, "A path is UTF-8.") from None
    return _checked(path or ".")


def _checked(path: str) -> str:
    try:
        return file_path(path)
    except ValueError as error:
        raise InvalidInput("path", path, f"{error}.".capitalize()) from None


def _mode(request: Request) -> int:
    text = request.query_params.get("mode", "644")
    if not _MODE.fullmatch(text):
        raise InvalidInput("mode", text, "Write three octal digits, such as 755.")
    return int(text, 8)


def _kind(request: Request) -> str | None:
    kind = request.query_params.get("archive")
    if kind is not None and kind not in _KINDS:
        raise InvalidInput("archive", kind, f"Give one of {', '.join(_KINDS)}.")
    return kind
