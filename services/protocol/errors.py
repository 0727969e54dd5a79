"""The one error shape for input that cannot be used."""


class InvalidInput(ValueError):
    """Input that cannot be used: names the field, the value found and the fix."""

    def __init__(self, field: str, value: object, fix: str) -> None:
        self.field, self.value, self.fix = field, value, fix
        super().__init__(f"{field}: {value!r} is not usable. {fix}")

    def __reduce__(self) -> tuple[type["InvalidInput"], tuple[str, object, str]]:
        """Keep the three parts when the error crosses a process boundary."""
        return type(self), (self.field, self.value, self.fix)


class NotReady(RuntimeError):
    """A peer is starting, restarting or gone; the caller may retry until its own deadline."""


class ReplicaLost(NotReady):
    """The replica that had the call in hand died with it; perhaps of it."""
