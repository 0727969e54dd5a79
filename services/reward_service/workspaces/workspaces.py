"""All workspaces of a replica: opened within quotas, found by their owners, ended with it."""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from services.observability.log import Log
from services.observability.metrics import WorkspaceMetrics
from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import OpenWorkspace
from services.reward_service.config import RewardServiceConfig, cores_here
from services.reward_service.jailed import probe
from services.reward_service.sandbox.core_queue import CoreQueue
from services.reward_service.sandbox.scratch_folder import ScratchFolder
from services.reward_service.sandbox.self_test import Tier, strongest_jail
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.errors import (
    JailLost,
    QuotaFull,
    UnknownSnapshot,
    WorkspaceFault,
    WorkspaceGone,
)
from services.reward_service.workspaces.jails.jail_settings import JailSettings
from services.reward_service.workspaces.jails.workspace_jail import WorkspaceJail
from services.reward_service.workspaces.network.networks import Networks
from services.reward_service.workspaces.quotas import Quotas
from services.reward_service.workspaces.registry import Registry
from services.reward_service.workspaces.running.files import MAX_ENTRIES
from services.reward_service.workspaces.running.programs import Programs
from services.reward_service.workspaces.running.turns import Turns
from services.reward_service.workspaces.self_test import prove
from services.reward_service.workspaces.snapshot import Snapshot, Snapshots
from services.reward_service.workspaces.workspace import Workspace
from services.side_by_side import cancel

_log = Log("workspaces")
_PROBE_MB = probe.MEMORY_LIMIT >> 20
_MOST = {
    "memory_mb": "max_memory_mb",
    "disk_mb": "max_disk_mb",
    "processes": "max_processes",
    "idle_s": "max_idle_s",
    "total_s": "max_total_s",
}
"""Of the request and of the configuration."""
_SHARED_USER = (
    "Without namespaces programs run as the service's own user here, and can change the modes and "
    "times of all its files. Make tier A work, start the service as root, or set true."
)
_OUTCOMES: dict[type[Exception], str] = {
    QuotaFull: "refused",
    InvalidInput: "invalid",
    UnknownSnapshot: "invalid",
    WorkspaceFault: "fault",
    WorkspaceGone: "fault",
}
"""What the metric says of an opening that failed."""


class Workspaces:
    """Opens, finds and ends the workspaces of a replica.

    Args:
        config: their limits.
        name: of the replica; ids of workspaces and snapshots begin with it and a hyphen.
    """

    def __init__(self, config: WorkspacesConfig, name: str = "") -> None:
        self.tier: Tier | None = None
        self._config = config
        self._prefix = f"{name}-" if name else ""
        self._quotas = Quotas(config)
        self._networks = Networks(config)
        self._registry = Registry()
        self._copies: set[Workspace] = set()
        self._snapshots = Snapshots(config.snapshot_mb << 20, config.snapshot_s, self._prefix)
        self._settings: JailSettings | None = None
        self._ending = False
        self._scratch: ScratchFolder | None = None
        self._starting = asyncio.Semaphore(2 * cores_here())
        self._places = CoreQueue(
            cores=config.calls_at_a_time, bound_s=float("inf"), wait_s=config.queue_wait_s
        )

    async def start(self) -> None:
        """Choose the strongest jail that works here and open a workspace to prove it.

        Raises:
            InvalidInput: no working jail has the required tier; names what is missing. Or its
                programs would share the service's user, and `shared_user` does not allow that.
        """
        tested = RewardServiceConfig(
            require_tier=self._config.require_tier,
            use_bubblewrap=self._config.use_bubblewrap,
            slot_start_s=self._config.start_s,
        )
        jail, self.tier = await strongest_jail(tested)
        if self.tier == "B" and os.geteuid() != 0 and not self._config.shared_user:
            raise InvalidInput("shared_user", False, _SHARED_USER)
        self._scratch = ScratchFolder("millrace-workspaces-")
        self._scratch.path.chmod(0o711)  # the jails' users look into their own folder
        self._settings = JailSettings(jail=jail, config=self._config, folders=self._scratch.path)
        WorkspaceMetrics.open.follow(lambda: len(self._registry))
        try:
            trial = await self._started(self._settings, OpenWorkspace(memory_mb=_PROBE_MB))
            try:
                programs = Programs(trial, Turns(self._places, ""), self._config)
                await prove(programs, namespaces=self.tier == "A")
            finally:
                await _abandon(trial)
        except (WorkspaceFault, JailLost) as error:
            fix = f"No workspace can be started with tier {self.tier}: {error}."
            raise InvalidInput("require_tier", self._config.require_tier, fix) from None
        _log.info("workspaces_started", tier=self.tier)

    async def open(self, spec: OpenWorkspace, *, owner: str) -> Workspace:
        """Open a workspace for an owner.

        Raises:
            InvalidInput: it asks for more than may be had.
            UnknownSnapshot: the owner has no such snapshot.
            QuotaFull: as many as may be are open, or were started just now.
            WorkspaceFault: its jail cannot be started.
        """
        started, outcome = time.monotonic(), "error"
        try:
            self._check(spec)
            begin_as = None if spec.snapshot is None else self._snapshots.get(spec.snapshot, owner)
            workspace = await self._start(spec, owner)
            await _prepare(workspace, begin_as)
            outcome = "ok"
        except tuple(_OUTCOMES) as error:
            outcome = next(name for kind, name in _OUTCOMES.items() if isinstance(error, kind))
            if isinstance(error, WorkspaceGone):
                reason = f"it ended while it was opened: {error.reason}"
                raise WorkspaceFault(reason) from error
            raise
        finally:
            WorkspaceMetrics.opens.inc(1, {"outcome": outcome})
        WorkspaceMetrics.open_seconds.observe(time.monotonic() - started)
        return workspace

    def find(self, workspace_id: str, *, owner: str) -> Workspace:
        """An open workspace of an owner.

        Raises:
            UnknownWorkspace: the owner has and had none of this name.
            WorkspaceGone: it ended.
        """
        return self._registry.find(workspace_id, owner)

    def of(self, owner: str) -> list[Workspace]:
        """The open workspaces of an owner, oldest first."""
        return self._registry.of(owner)

    async def snapshot(self, workspace: Workspace) -> Snapshot:
        """Keep the files of a workspace, and the cells that made its variables.

        Raises:
            InvalidInput, QuotaFull: it takes more memory than there is for snapshots.
        """
        archive, cells = await workspace.contents(self._snapshots.free)
        return self._snapshots.add(workspace.owner, archive, cells)

    def drop_snapshot(self, snapshot_id: str, *, owner: str) -> None:
        """Forget a snapshot of an owner.

        Raises:
            UnknownSnapshot: the owner has none of this name.
        """
        self._snapshots.drop(snapshot_id, owner)

    async def fork(self, workspace: Workspace, n: int) -> list[Workspace]:
        """Open `n` workspaces that begin as this one is now; all or none.

        Raises:
            The errors of `snapshot` and of `open`.
        """
        made = await self.snapshot(workspace)
        spec = workspace.spec.model_copy(update={"files": {}, "snapshot": made.id})
        opening = [
            asyncio.create_task(self.open(spec, owner=workspace.owner), name="fork")
            for _ in range(n)
        ]
        try:
            return await asyncio.gather(*opening)
        except BaseException:  # one failed, or the client left
            await asyncio.shield(_undo(opening))
            raise
        finally:
            with contextlib.suppress(UnknownSnapshot):
                self.drop_snapshot(made.id, owner=workspace.owner)

    async def open_copy(
        self, archive: bytes, spec: OpenWorkspace, *, owner: str, tests: Path
    ) -> Workspace:
        """A workspace with the files of a tar that nobody can find, beside a folder of tests.

        It is not counted among those that are open, so that a full replica can still grade.

        Args:
            archive: of files that are not trusted.
            spec: its limits.
            owner: whose turn its calls take.
            tests: folder of the host that its programs can read, as `$TESTS`.

        Raises:
            InvalidInput: the archive cannot be unpacked.
            WorkspaceFault: its jail cannot be started.
            WorkspaceGone: its jail died.
        """
        assert self._settings is not None, "start() comes first"
        jail = await self._started(replace(self._settings, tests=tests), spec)
        copy = self._workspace(secrets.token_hex(16), jail, owner)
        self._copies.add(copy)
        copy.when_ended(self._copies.discard)
        await _prepare(copy, Snapshot(id="", owner=owner, archive=archive, cells=()))
        return copy

    def new_folder(self) -> Path:
        """A new folder on the host that jails can be given; its caller removes it.

        Raises:
            OSError: the disk is full.
        """
        assert self._scratch is not None, "start() comes first"
        path = self._scratch.path / f"tests-{secrets.token_hex(8)}"
        path.mkdir(mode=0o755)
        path.chmod(0o755)  # whatever this process's mask is
        return path

    async def aclose(self) -> None:
        """End all of them, and all that the replica holds for them; no other is opened then."""
        self._ending = True
        ending = [*self._registry.all(), *self._copies]
        await asyncio.gather(*(one.close("shutdown") for one in ending))
        self._snapshots.clear()
        self._networks.close()
        if self._scratch is not None:
            self._scratch.remove()

    def _check(self, spec: OpenWorkspace) -> None:
        for name, limit in _MOST.items():
            value, most = getattr(spec, name), getattr(self._config, limit)
            if value > most:
                raise InvalidInput(name, value, f"Ask for at most {most:g} ({limit}).")
        if len(spec.files) > MAX_ENTRIES:
            fix = f"Give at most {MAX_ENTRIES}: open it without them and upload an archive."
            raise InvalidInput("files", f"{len(spec.files)} files", fix)
        if spec.network and self.tier != "A":
            fix = "Without namespaces (tier B) there is none: leave it out, or install bubblewrap."
            raise InvalidInput("network", spec.network, fix)
        self._networks.check(spec.network)
        assert self._settings is not None, "start() comes first"
        self._settings.check_root_folders(spec.root_folders)

    async def _start(self, spec: OpenWorkspace, owner: str) -> Workspace:
        """Start a workspace and count it, until it has ended."""
        assert self._settings is not None, "start() comes first"
        wait_s = self._quotas.take(owner)
        try:
            await asyncio.sleep(wait_s)
            jail = await self._started(self._settings, spec)
        except BaseException:
            self._quotas.give_back(owner)
            raise
        workspace = self._workspace(self._prefix + secrets.token_hex(16), jail, owner)
        self._registry.add(workspace)
        workspace.when_ended(lambda _: self._quotas.give_back(owner))
        return workspace

    async def _started(self, settings: JailSettings, spec: OpenWorkspace) -> WorkspaceJail:
        """A jail that is up, with its network; nothing of it is left if that fails.

        Raises:
            WorkspaceFault: it cannot be started.
        """
        jail = WorkspaceJail(settings, spec)
        try:
            async with self._starting:
                await jail.start()
            if self._ending:
                raise WorkspaceFault("the service ends")
            self._networks.connect(jail, spec)
        except BaseException as error:
            await asyncio.shield(_abandon(jail))
            if isinstance(error, OSError):
                raise WorkspaceFault(f"{type(error).__name__}: {error}") from error
            raise
        return jail

    def _workspace(self, workspace_id: str, jail: WorkspaceJail, owner: str) -> Workspace:
        turns = Turns(self._places, owner)
        programs = Programs(jail, turns, self._config)
        return Workspace(workspace_id, owner, jail.spec, jail, turns, programs)


async def _prepare(workspace: Workspace, begin_as: Snapshot | None) -> None:
    """Give a new workspace its files and its variables; close it if that fails."""
    try:
        if begin_as is not None:
            await workspace.become(begin_as.archive, begin_as.cells)
        if files := workspace.spec.files:
            entries = [(path, text.encode(), 0o644) for path, text in files.items()]
            await workspace.write_all(entries)
    except BaseException:
        await asyncio.shield(workspace.close("closed"))
        raise


async def _undo(opening: Sequence[asyncio.Task[Workspace]]) -> None:
    """Stop opening, and close what was opened."""
    await cancel(*opening)
    opened = [one.result() for one in opening if not one.cancelled() and one.exception() is None]
    await asyncio.gather(*(one.close("closed") for one in opened))


async def _abandon(jail: WorkspaceJail) -> None:
    await jail.end()
    await jail.release()
