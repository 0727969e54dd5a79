"""The account of every sample group, in SQLite: every statement that uses `schema.sql`.

Double entry: the table `account` counts what was admitted, `groups` has how it ended, and both
change in one transaction. So admitted = trained + filtered + expired + failed + in flight,
in groups and in tokens, whenever the process is killed; `imbalance` compares the two.

The result of a group that is rolled out and scored stays here until the group closes or is
rolled out again, so that no kill costs a finished group.

Of a group's `tokens`, those of its newest attempt are `kept`; the others are in `waste`, by
the cause for which their attempt was thrown away.
"""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.ledger.ledger_file import LedgerFile, read_only
from services.ledger.sample_group import Ending, GroupQuery, LedgerGroup, Prompt, Sort
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import LedgerCounts
from services.protocol.trainer import LedgerFrontier

LEDGER_FILE = "ledger.sqlite"
"""Name of a run's ledger in its directory."""

_SCHEMA = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
_COLUMNS = (
    "group_id, task_id, status, attempts, admitted_version, oldest_version, train_step, tokens,"
    " reason"
)
_ORDER: dict[Sort, str] = {
    "newest": "group_id DESC",
    "oldest": "group_id",
    "tokens": "tokens DESC, group_id DESC",
}


class LedgerError(RuntimeError):
    """The status of a group does not allow the transition, such as closing it twice."""


class LedgerReader:
    """Questions to a ledger."""

    def __init__(self, db: LedgerFile | sqlite3.Connection) -> None:
        self._db = db

    def finished(self) -> frozenset[int]:
        """Groups in flight that have a result."""
        return frozenset(row[0] for row in self._db.execute("SELECT group_id FROM results"))

    def result(self, group_id: int) -> bytes:
        """The result of a finished group, as `keep_result` got it."""
        return bytes(self._one("SELECT result FROM results WHERE group_id = ?", group_id))

    def in_flight(self) -> list[LedgerGroup]:
        """Open groups in the order of admission."""
        rows = self._db.execute(
            "SELECT group_id, position, epoch, task_id, attempts FROM groups"
            " WHERE status = 'in_flight' ORDER BY group_id"
        )
        return [
            LedgerGroup(
                group_id=group_id,
                prompt=Prompt(position=position, epoch=epoch, task_id=task_id),
                attempt=attempts,
            )
            for group_id, position, epoch, task_id, attempts in rows
        ]

    def next_position(self) -> int:
        """The first position of the prompt order that was never admitted."""
        return int(self._one("SELECT COALESCE(MAX(position) + 1, 0) FROM groups"))

    def frontier(self) -> LedgerFrontier:
        """The state of the ledger for a checkpoint of the newest train step."""
        return LedgerFrontier(next_position=self.next_position(), trained=self.counts().trained)

    def reaches(self, frontier: LedgerFrontier) -> bool:
        """Whether this is the ledger of a checkpoint, after a rollback to its train step."""
        now = self.frontier()
        return now.trained == frontier.trained and now.next_position >= frontier.next_position

    def last_step(self) -> int:
        """The newest train step that closed a group, 0 before the first."""
        query = "SELECT COALESCE(MAX(train_step), 0) FROM groups WHERE status = 'trained'"
        return int(self._one(query))

    def counts(self) -> LedgerCounts:
        """The ledger in groups."""
        return self._counts("COUNT(*)", "groups")

    def token_counts(self) -> LedgerCounts:
        """The ledger in response tokens, those of failed attempts included."""
        return self._counts("SUM(tokens)", "tokens")

    def tokens_sampled(self) -> int:
        """Response tokens of all groups and attempts so far: see `FIGURES`."""
        return int(self._one("SELECT tokens FROM account"))

    def tokens_evaluated(self) -> int:
        """Response tokens of held-out evaluations so far, which no group accounts for."""
        both = self.fact("tokens", 0)  # what older runs noted: the sum
        return int(self.fact("tokens_evaluated", max(0, both - self.tokens_sampled())))

    def _counts(self, measure: str, column: str) -> LedgerCounts:
        rows = self._db.execute(f"SELECT status, {measure} FROM groups GROUP BY status")
        admitted = self._one(f"SELECT {column} FROM account")
        return LedgerCounts(admitted=admitted, **dict(rows.fetchall()))

    def reasons(self, ending: Ending) -> dict[str, int]:
        """Groups that ended so, by reason."""
        query = "SELECT reason, COUNT(*) FROM groups WHERE status = ? GROUP BY reason"
        return dict(self._db.execute(query, (ending,)).fetchall())

    def wasted(self) -> dict[str, int]:
        """Response tokens that trained nothing and will not, by cause, the largest first.

        Those of groups that closed otherwise than trained are under `status: reason`, those
        of attempts that were thrown away under `again: reason`.
        """
        rows = self._db.execute(
            "SELECT 'again: ' || cause, tokens FROM waste UNION ALL"
            " SELECT status || iif(reason = '', '', ': ' || reason), SUM(kept) FROM groups"
            " WHERE status IN ('expired', 'failed') GROUP BY status, reason HAVING SUM(kept) > 0"
            " UNION ALL SELECT status, SUM(kept) FROM groups"
            " WHERE status = 'filtered' GROUP BY status"
        )
        return dict(sorted(rows.fetchall(), key=lambda row: -row[1]))

    def flow(self) -> dict[str, Any]:
        """Groups and tokens by ending, and the causes for which tokens trained nothing."""
        reasons = self._db.execute(
            "SELECT status, reason, COUNT(*) AS groups, SUM(kept) AS tokens FROM groups"
            " WHERE status IN ('filtered', 'expired', 'failed') GROUP BY status, reason"
        )
        return {
            "groups": self.counts().model_dump(),
            "tokens": self.kept().model_dump(),
            "tokens_evaluated": self.tokens_evaluated(),
            "again": dict(self._db.execute("SELECT cause, tokens FROM waste").fetchall()),
            "reasons": _dicts(reasons),
            "finished_in_flight": len(self.finished()),
            "imbalance": self.imbalance(),
        }

    def groups(self, query: GroupQuery) -> tuple[int, list[dict[str, Any]]]:
        """The number of groups that match, and the page of them that is asked for."""
        where = (
            "(:status IS NULL OR status = :status) AND (:step IS NULL OR train_step = :step)"
            " AND instr(task_id, :task) > 0"
        )
        asked = query.model_dump()
        total = self._db.execute(f"SELECT COUNT(*) FROM groups WHERE {where}", asked).fetchone()[0]
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM groups WHERE {where}"
            f" ORDER BY {_ORDER[query.sort]} LIMIT :limit OFFSET :offset",
            asked,
        )
        return total, _dicts(rows)

    def group(self, group_id: int) -> dict[str, Any] | None:
        """One group; None where there is none."""
        select = f"SELECT {_COLUMNS} FROM groups WHERE group_id = ?"
        return next(iter(_dicts(self._db.execute(select, (group_id,)))), None)

    def kept(self) -> LedgerCounts:
        """Response tokens of newest attempts; `admitted` counts all sampled tokens."""
        return self._counts("SUM(kept)", "tokens")

    def imbalance(self) -> int:
        """Groups plus tokens by which the two sides differ; anything but 0 is a defect."""
        kept = self.kept()
        accounted = kept.trained + kept.in_flight + sum(self.wasted().values())
        sides = (self.counts(), self.token_counts())
        return sum(map(_difference, sides)) + abs(kept.admitted - accounted)

    def facts(self) -> dict[str, str]:
        """Facts about the run by name, as JSON texts."""
        return dict(self._db.execute("SELECT name, value FROM facts").fetchall())

    def fact(self, name: str, default: Any = None) -> Any:
        """One fact, decoded."""
        value = self.facts().get(name)
        return default if value is None else json.loads(value)

    def _one(self, query: str, *values: Any) -> Any:
        return self._db.execute(query, values).fetchone()[0]


class Ledger(LedgerReader, LedgerFile):
    """The ledger of a run, as its run writes it; use it from one thread.

    While its disk is full the account goes on in memory: see `LedgerFile`.
    """

    def __init__(self, path: str | Path) -> None:
        LedgerFile.__init__(self, path)
        LedgerReader.__init__(self, self)
        self.connection.executescript(_SCHEMA)

    def admit(self, prompts: Sequence[Prompt], *, version: int) -> list[LedgerGroup]:
        """Open a group for each prompt, first attempt, sampled from `version` or newer."""
        groups = []
        with self.transaction():
            for prompt in prompts:
                row = self._db.execute(
                    "INSERT INTO groups (position, epoch, task_id, status, admitted_version)"
                    " VALUES (?, ?, ?, 'in_flight', ?)",
                    (prompt.position, prompt.epoch, prompt.task_id, version),
                )
                group_id = int(row.lastrowid or 0)
                groups.append(LedgerGroup(group_id=group_id, prompt=prompt, attempt=1))
            self._db.execute("UPDATE account SET groups = groups + ?", (len(groups),))
        return groups

    def restart(self, group_id: int, *, version: int) -> None:
        """A group's next rollout begins, sampled from `version` or newer."""
        with self.transaction():
            self._change(group_id, "admitted_version = ?, oldest_version = NULL", version)

    def rolled_out(self, group_id: int, *, oldest_version: int | None, tokens: int) -> None:
        """A rollout ended; add its response tokens, of use or not."""
        with self.transaction():
            change = "oldest_version = ?, tokens = tokens + ?, kept = kept + ?"
            self._change(group_id, change, oldest_version, tokens, tokens)
            self._db.execute("UPDATE account SET tokens = tokens + ?", (tokens,))

    def keep_result(self, group_id: int, result: bytes) -> None:
        """Keep the result of a group in flight, rolled out and scored; the caller encodes it."""
        with self.transaction():
            self._db.execute("INSERT INTO results VALUES (?, ?)", (group_id, result))

    def retry(self, group_id: int, *, reason: str) -> int:
        """A group is to be rolled out again; returns the number of the new attempt."""
        with self.transaction():
            self._waste(reason, "group_id = ?", group_id)
            self._change(group_id, "attempts = attempts + 1, kept = 0, reason = ?", reason)
        return int(self._one("SELECT attempts FROM groups WHERE group_id = ?", group_id))

    def close_group(self, group_id: int, ending: Ending, *, reason: str = "") -> None:
        """Close one group.

        Raises:
            LedgerError: it is closed already or was never admitted.
        """
        with self.transaction():
            self._change(group_id, "status = ?, reason = ?", ending, reason)

    def close_batch(
        self,
        step: int,
        *,
        train: Sequence[int],
        filtered: Sequence[int],
        reasons: Mapping[int, str] | None = None,
    ) -> None:
        """Close the groups of a batch, all or none.

        Args:
            step: the train step that it was.
            train: groups that the step trained.
            filtered: groups that it did not train.
            reasons: of filtered groups, by group.

        Raises:
            LedgerError: one of them is closed already or was never admitted.
        """
        with self.transaction():
            for group_id in train:
                self._change(group_id, "status = 'trained', train_step = ?", step)
            for group_id in filtered:
                reason = (reasons or {}).get(group_id, "")
                change = "status = 'filtered', train_step = ?, reason = ?"
                self._change(group_id, change, step, reason)

    def _change(self, group_id: int, assignments: str, *values: Any) -> None:
        """Update a group that is in flight; every transition goes through here."""
        done = self._db.execute(
            f"UPDATE groups SET {assignments} WHERE group_id = ? AND status = 'in_flight'",
            (*values, group_id),
        )
        if done.rowcount != 1:
            raise LedgerError(f"group {group_id} is not in flight")

    def _waste(self, cause: str, which: str, *values: Any) -> None:
        """Count the tokens that these groups have as wasted, for this cause."""
        query = f"SELECT COALESCE(SUM(kept), 0) FROM groups WHERE {which}"
        if lost := self._one(query, *values):
            self._db.execute(
                "INSERT INTO waste VALUES (?, ?)"
                " ON CONFLICT (cause) DO UPDATE SET tokens = tokens + excluded.tokens",
                (cause, lost),
            )

    def rollback(
        self,
        step: int,
        *,
        keep: Collection[int] = (),
        filtered: bool = False,
        comparable: bool = True,
    ) -> int:
        """The weights went back to train step `step`: reopen the groups that later steps trained.

        Every group in flight is to be rolled out again but those to `keep`. It gets a new attempt
        if its newest one ended, as the tokens of that one are lost. An attempt that a kill cut off
        goes on under its number, by which the router's sessions of its episodes are found again.

        Args:
            step: the train step.
            keep: groups in flight that have what they need.
            filtered: reopen those that batches of later steps filtered, too: these batches are to
                be the same again.
            comparable: policy versions count on; else an attempt that was cut off is lost, too.

        Returns:
            How many closed groups were opened again.
        """
        with self.transaction():
            opened = self._db.execute(
                "UPDATE groups SET status = 'in_flight', train_step = NULL"
                " WHERE (status = 'trained' OR (status = 'filtered' AND ?)) AND train_step > ?",
                (filtered, step),
            ).rowcount
            lost = (
                "status = 'in_flight' AND group_id NOT IN (SELECT value FROM json_each(?))",
                json.dumps(sorted(keep)),
            )
            self._waste("rollback", *lost)
            self._db.execute(
                "UPDATE groups SET attempts = attempts + (kept > 0 OR ?), oldest_version = NULL,"
                f" kept = 0, reason = 'rollback' WHERE {lost[0]}",
                (not comparable, *lost[1:]),
            )
        return opened

    def note(self, **facts: Any) -> None:
        """Remember facts about the run, as JSON values."""
        with self.transaction():
            for name, value in facts.items():
                self._db.execute(
                    "INSERT INTO facts VALUES (?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    (name, json.dumps(value)),
                )


@contextmanager
def reading(path: Path) -> Iterator[LedgerReader]:
    """A ledger as it is at one moment, beside its run or after a crash; the file is only read.

    Raises:
        sqlite3.Error: it is damaged, or no ledger.
    """
    with read_only(path, probe="SELECT 1 FROM groups LIMIT 1") as db:
        yield LedgerReader(db)


@contextmanager
def ledger_of(run_dir: str | Path) -> Iterator[LedgerReader]:
    """The ledger in a run directory, as `reading` has it.

    Raises:
        InvalidInput: there is none, or it cannot be read.
    """
    path = Path(run_dir) / LEDGER_FILE
    if not path.is_file():
        raise InvalidInput("run directory", str(run_dir), f"It holds no {LEDGER_FILE}.")
    try:
        with reading(path) as ledger:
            yield ledger
    except sqlite3.Error as error:
        fix = f"It cannot be read as a ledger: {error}."
        raise InvalidInput("ledger", str(path), fix) from None


def _difference(side: LedgerCounts) -> int:
    accounted = side.trained + side.filtered + side.expired + side.failed + side.in_flight
    return abs(side.admitted - accounted)


def _dicts(rows: sqlite3.Cursor) -> list[dict[str, Any]]:
    names = [column[0] for column in rows.description]
    return [dict(zip(names, row, strict=True)) for row in rows]
