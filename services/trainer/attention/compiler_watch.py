"""Torch's compiler at work counts as progress, so that it is not taken for a hang."""

from services.trainer.heartbeat import HEARTBEAT


def watch_compiler() -> None:
    """Tell the process's heartbeat of all that is compiled from now on."""
    from torch._dynamo import callback_handler  # private; imports much

    if _begins not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_begins)
        callback_handler.register_end_callback(_ends)


def _begins(_: object) -> None:
    HEARTBEAT.compiling(True)


def _ends(_: object) -> None:
    HEARTBEAT.compiling(False)
