"""Requests in flight on every replica, and a Hugging Face forward as their judge."""

import asyncio
import itertools
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from services.changes import Changes
from services.protocol.weights.weight_bus import Member
from services.router.answering.journal import ChoiceJournal
from tests.chaos.request import PROMPT, open_session, stream

STREAMS = 2
DEADLINE_S = 300.0
_MOST_LOADED = 8


class Client:
    """Asks replicas again and again, as the router does, and keeps every token it got.

    Attributes:
        journals: all answers, whole or cut off, by replica.
    """

    def __init__(self) -> None:
        self.journals: dict[str, list[ChoiceJournal]] = {}
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._numbers = itertools.count()
        self._changes = Changes()
        self._session = open_session()

    def ask(self, member: Member) -> None:
        """Keep `STREAMS` requests in flight on the replica until it dies."""
        self.journals.setdefault(member.replica_id, [])
        for _ in range(STREAMS):
            self._tasks[asyncio.create_task(self._keep_asking(member))] = member.replica_id

    async def stop(self, *, killed: set[str]) -> None:
        """Cut all requests off; raises what went wrong with one of a replica that lives."""
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
        for result, replica_id in zip(results, self._tasks.values(), strict=True):
            if isinstance(result, Exception) and replica_id not in killed:
                raise result

    def tokens(self, replica_id: str) -> int:
        return sum(len(journal.token_ids) for journal in self.journals[replica_id])

    def labels(self, replica_id: str) -> set[int]:
        """Versions of all tokens that the replica served."""
        return {span[0] for journal in self.journals[replica_id] for span in journal.spans}

    async def flows(self, replica_id: str) -> None:
        """Return when the replica has served more tokens than it had at the call."""
        before = self.tokens(replica_id)
        assert await self._changes.until(
            lambda: self.tokens(replica_id) > before, timeout_s=DEADLINE_S
        ), f"{replica_id} serves no tokens"

    async def served(self, replica_id: str, version: int) -> None:
        """Return when the replica has served a token under this label."""
        assert await self._changes.until(
            lambda: version in self.labels(replica_id), timeout_s=DEADLINE_S
        ), f"{replica_id} serves {self.labels(replica_id)}, not {version}"

    async def _keep_asking(self, member: Member) -> None:
        while True:
            journal = ChoiceJournal(0)
            journal.begin_segment(member.replica_id)
            self.journals[member.replica_id].append(journal)
            request_id = f"chaos-{next(self._numbers)}"
            await stream(self._session, member, request_id, journal, self._changes.notify)


class Judge:
    """The model under every version that the trainer made."""

    def __init__(self, model: Path, weights: Path) -> None:
        self._model, self._weights = model, weights
        self._loaded: dict[int, PreTrainedModel] = {}

    def worst(self, journal: ChoiceJournal) -> float:
        """Largest |served - reference| logprob, each token under its labelled version."""
        worst = 0.0
        for version, start, end, _ in journal.spans:
            expected = self.logprobs(version, journal.token_ids)[start:end]
            served = torch.tensor(journal.logprobs[start:end], dtype=torch.float64)
            worst = max(worst, (served - expected).abs().max().item())
        return worst

    @torch.no_grad()
    def logprobs(self, version: int, tokens: list[int]) -> torch.Tensor:
        """float64 `[T]`: of each token after the prompt and those before it."""
        ids = torch.tensor([PROMPT + tokens])
        logits = self._under(version)(ids).logits[0, len(PROMPT) - 1 : -1]
        return logits.double().log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]

    def forget(self, below: int) -> None:
        """Drop the weights of versions that nobody will be served under any more."""
        for path in self._weights.glob("*.pt"):
            if int(path.stem) < below:
                path.unlink()

    def _under(self, version: int) -> PreTrainedModel:
        if version not in self._loaded:
            config = AutoConfig.from_pretrained(self._model)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
            state = torch.load(self._weights / f"{version}.pt", weights_only=True)
            missing, unexpected = model.load_state_dict(state, strict=False)
            assert not unexpected, unexpected
            assert set(missing) <= {"lm_head.weight"}, missing
            self._loaded[version] = model
            if len(self._loaded) > _MOST_LOADED:
                del self._loaded[min(self._loaded)]
            return model
        return self._loaded[version]
