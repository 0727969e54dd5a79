"""The goods of the shop and its customers' requests; every task has prices of its own."""

import random
from dataclasses import dataclass
from typing import Any

ITEMS = ("apple", "bread", "candle", "lemon", "pen", "soap")
TRAIN, HELDOUT = 500, 50


@dataclass(frozen=True, kw_only=True)
class Purchase:
    """Some of one item, whose price only the shop's list has."""

    item: str
    count: int
    prices: dict[str, int]

    @property
    def prompt(self) -> str:
        """The words of the customer."""
        return f"{self.count} {self.item}"

    @property
    def total(self) -> int:
        """The price of all items together."""
        return self.count * self.prices[self.item]

    def row(self, number: int, split: str) -> dict[str, Any]:
        """A line of the task file."""
        return {
            "task_id": f"{split}-{number}",
            "split": split,
            "messages": [{"role": "user", "content": self.prompt}],
            "data": {"prices": self.prices, "total": self.total},
        }

    def turns(self, *, right: bool) -> list[tuple[str, str]]:
        """The words of a clerk, each with the tool's answer; a wrong clerk adds."""
        price = self.prices[self.item]
        tool, paid = ("times", self.count * price) if right else ("plus", self.count + price)
        return [
            (f"price {self.item}", str(price)),
            (f"{tool} {self.count} {price}", str(paid)),
            (f"pay {paid}", ""),
        ]


def purchases(seed: int = 0) -> list[Purchase]:
    """All of them, the held-out ones last; the same for a seed."""
    chance = random.Random(seed)
    return [
        Purchase(
            item=chance.choice(ITEMS),
            count=chance.randint(3, 9),
            prices={item: chance.randint(3, 9) for item in ITEMS},
        )
        for _ in range(TRAIN + HELDOUT)
    ]


def rows() -> list[dict[str, Any]]:
    """The task file."""
    everything = purchases()
    return [
        one.row(number, "train" if number < TRAIN else "heldout")
        for number, one in enumerate(everything)
    ]
