"""`/v1/sessions`: make, read, finish, list and delete recorded sessions."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Self, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, ValidationError, model_validator

from services.http.json_body import disconnected, read_body
from services.http.openapi import ERRORS, json_body
from services.protocol.session import (
    Reward,
    SessionDeleted,
    SessionEnding,
    SessionFields,
    SessionInterrupted,
    SessionList,
    SessionOffer,
    SessionState,
    SessionSummary,
    SessionTaken,
)
from services.protocol.strict import StrictModel, first_problem, wrong_field
from services.router.errors import RequestFailed, bad_request
from services.router.http.answer_endpoint import parsed
from services.router.http.openapi import query
from services.router.placement.interruptions import Interruptions
from services.router.request.client_request import session_key
from services.router.trajectories.refused_rewards import count_refused
from services.router.trajectories.shared_sessions import SessionRecords
from services.side_by_side import cancel

_MAX_BODY_BYTES = 2 * 1024 * 1024
"""Of an offer with its task, or a text to grade."""
_T = TypeVar("_T")
_Model = TypeVar("_Model", bound=StrictModel)


class _NewSession(StrictModel):
    """Body of POST /v1/sessions; its metadata has OpenAI's bounds."""

    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] = (
        Field(default={}, max_length=16)
    )
    offer: SessionOffer | None = None


class _Take(StrictModel):
    """Body of POST /v1/sessions/take."""

    run: str | None = None
    task_id: str | None = None
    wait_s: float = Field(default=0.0, ge=0)


class _Reward(StrictModel):
    """Body of POST /v1/sessions/{id}/rewards: a reward, or one of each token of the newest call."""

    reward: Reward | None = None
    token_rewards: list[Reward] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.reward is None) == (self.token_rewards is None):
            raise wrong_field("reward", self.reward, "Give it or token_rewards.")
        return self


class _Finish(SessionEnding):
    """Body of POST /v1/sessions/{id}/finish."""

    return_trajectories: bool = False

    @property
    def ending(self) -> SessionEnding:
        """What it says of the session."""
        return SessionEnding(**self.model_dump(exclude={"return_trajectories"}))


class _Interrupt(StrictModel):
    """Body of POST /v1/sessions/{id}/interrupt."""

    min_version: int = Field(ge=0)


class _Part(StrictModel):
    """Query of GET /v1/sessions/{id}: which trajectories, all by default."""

    first: int = Field(default=0, ge=0)
    count: int | None = Field(default=None, ge=0)


class _Listing(StrictModel):
    """Query of GET /v1/sessions."""

    state: SessionState = "finished"
    after: int = Field(default=0, ge=0)
    limit: int = Field(default=100, ge=1, le=1000)
    wait_s: float = Field(default=0.0, ge=0)


def session_routes(
    sessions: SessionRecords,
    interruptions: Interruptions,
    forget_home: Callable[[str], None],
    *,
    read_s: float,
) -> APIRouter:
    """The routes.

    Args:
        sessions: recorded sessions.
        interruptions: sessions that are interrupted, which need no record.
        forget_home: called for every session that ends.
        read_s: how long a client may take to send a body.
    """
    routes = APIRouter(prefix="/v1/sessions", responses=ERRORS)
    made_of, chosen_by = _body_of(_NewSession), query(_Listing.model_json_schema())
    ended_by, in_part = _body_of(_Finish), query(_Part.model_json_schema())
    either = SessionSummary | SessionFields

    @routes.post("", response_model=SessionSummary, openapi_extra=made_of)
    async def make(request: Request) -> Response:
        """Make a session; its id goes into the session header of every call."""
        asked = _checked(_NewSession, await _body(request, read_s))
        return _json(await sessions.create(asked.metadata, asked.offer))

    @routes.get("", response_model=SessionList, openapi_extra=chosen_by)
    async def listing(request: Request) -> Response:
        """Sessions of a state, the finished ones in the order of finishing."""
        asked = _checked(_Listing, dict(request.query_params))
        listed = sessions.listed(asked.state, asked.after, asked.limit, asked.wait_s)
        found = await _while_here(request, listed)
        return _json(SessionList(data=found))

    @routes.get("/{name}", response_model=SessionFields, openapi_extra=in_part)
    async def read(name: str, request: Request) -> Response:
        """A session with its trajectories, or some of them, finished or not."""
        part = _checked(_Part, dict(request.query_params))
        return await _whole(await sessions.get(name, part.first, part.count))

    @routes.post("/{name}/finish", response_model=either, openapi_extra=ended_by)
    async def finish(name: str, request: Request) -> Response:
        """Close a session, as `SessionEnding` says; again, it changes nothing."""
        asked = await _reward_of(_Finish, name, request, read_s)
        finished = await sessions.finish(name, asked.ending)
        forget_home(name)
        if asked.return_trajectories:
            return await _whole(await sessions.get(name))
        return _json(finished)

    @routes.delete("/{name}", response_model=SessionDeleted)
    async def delete(name: str) -> Response:
        """Forget a session that was read."""
        await sessions.delete(name)
        forget_home(name)
        return _json(SessionDeleted(id=name))

    _add_work(routes, sessions, read_s=read_s)
    _add_interrupt(routes, interruptions, read_s=read_s)
    return routes


def _add_work(routes: APIRouter, sessions: SessionRecords, *, read_s: float) -> None:
    """What agents outside do, besides their calls and the end."""

    @routes.post("/take", response_model=SessionTaken, openapi_extra=_body_of(_Take))
    async def take(request: Request) -> Response:
        """Give an agent the oldest session that is offered; wait for one if asked to."""
        asked = _checked(_Take, await _body(request, read_s))
        taken = await sessions.take(asked.run, asked.task_id)
        # An agent that leaves while it waits has taken nothing.
        if taken.session is None and await _while_here(
            request, sessions.until_offered(asked.run, asked.wait_s, asked.task_id)
        ):
            taken = await sessions.take(asked.run, asked.task_id)
        return _json(taken)

    @routes.post("/{name}/rewards", response_model=SessionSummary, openapi_extra=_body_of(_Reward))
    async def reward(name: str, request: Request) -> Response:
        """Count a reward before the end, as for a turn or its tokens; the session's is the sum."""
        asked = await _reward_of(_Reward, name, request, read_s)
        given = asked.token_rewards if asked.reward is None else asked.reward
        assert given is not None, "checked as the body was read"
        return _json(await sessions.add_reward(name, given))


def _add_interrupt(routes: APIRouter, interruptions: Interruptions, *, read_s: float) -> None:
    @routes.post(
        "/{name}/interrupt", response_model=SessionInterrupted, openapi_extra=_body_of(_Interrupt)
    )
    async def interrupt(name: str, request: Request) -> Response:
        """Stop its answers where they are: they, and its later calls, wait for a version.

        It is any value of the session header.
        """
        asked = _checked(_Interrupt, await _body(request, read_s))
        stopped = interruptions.interrupt(name, asked.min_version)
        return _json(SessionInterrupted(id=name, stopped=stopped))


async def _while_here(request: Request, wait: Coroutine[Any, Any, _T]) -> _T:
    """What a wait ends with, unless the client leaves before."""
    waiting = asyncio.create_task(wait)
    leaving = asyncio.create_task(disconnected(request.receive))
    try:
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise RequestFailed(499, "disconnected", "the client left")
        return waiting.result()
    finally:
        await cancel(waiting, leaving)


def _body_of(model: type[StrictModel]) -> dict[str, Any]:
    return json_body(model.model_json_schema())


async def _body(request: Request, timeout_s: float) -> Any:
    """The parsed body; none at all means no fields."""
    raw = await read_body(
        request.receive, max_bytes=_MAX_BODY_BYTES, timeout_s=timeout_s, refused=RequestFailed
    )
    return parsed(raw) if raw else {}


async def _reward_of(model: type[_Model], name: str, request: Request, timeout_s: float) -> _Model:
    """The body of a request with a reward for the session `name`; one that is refused is counted.

    Keys of the router stand before this; here is who shows the key of another session.
    """
    key = session_key(request.headers)
    if key is not None and key != name:
        count_refused("other_session")
        message = "the key is that of another session: use its own, or a key of the router"
        raise RequestFailed(403, "other_session", message, param="authorization")
    try:
        return _checked(model, await _body(request, timeout_s))
    except RequestFailed:
        count_refused("invalid")
        raise


def _checked(model: type[_Model], data: Any) -> _Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problem = first_problem(error, "request", model)
        field = problem.field.removeprefix("request: ")
        # The value of an unknown field is not shown: it may be a secret.
        unknown = any(one["type"] == "extra_forbidden" for one in error.errors())
        shown = field if unknown else f"{field}: {problem.value!r:.200}"
        message = f"{shown} is not usable. {problem.fix}"
        raise bad_request(message, field) from None


async def _whole(session: SessionFields) -> Response:
    """In a thread and piece by piece, so that streams need not wait for megabytes of JSON."""

    def written() -> str:
        summary = session.model_dump_json(exclude={"trajectories"})
        trajectories = ",".join(one.model_dump_json() for one in session.trajectories)
        return f'{summary[:-1]},"trajectories":[{trajectories}]}}'

    return Response(await asyncio.to_thread(written), media_type="application/json")


def _json(content: BaseModel) -> Response:
    return Response(content.model_dump_json(), media_type="application/json")
