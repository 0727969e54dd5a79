"""A shop's clerk, made with OpenAI's Agents SDK. Nothing here knows of Millrace.

    python agent.py "4 lemon"

With `OPENAI_BASE_URL` and `OPENAI_API_KEY` set, it speaks to any server of the Responses API.
"""

import argparse
import asyncio
from collections.abc import Mapping

from agents import Agent, ModelProvider, OpenAIProvider, RunConfig, Runner, function_tool

PRICES = {"apple": 3, "bread": 5, "candle": 8, "lemon": 7, "pen": 4, "soap": 6}
MAX_TURNS = 4


def clerk(prices: Mapping[str, int]) -> Agent:
    """An agent that may look into a price list, multiply and add; its last words are the sum."""

    @function_tool(strict_mode=False)
    def price(item: str) -> str:
        """The price of one item."""
        return str(prices.get(item, "none"))

    @function_tool(strict_mode=False)
    def times(a: int, b: int) -> int:
        """The product of two numbers."""
        return a * b

    @function_tool(strict_mode=False)
    def plus(a: int, b: int) -> int:
        """The sum of two numbers."""
        return a + b

    return Agent(name="clerk", model="clerk", tools=[price, times, plus])


async def serve(customer: str, prices: Mapping[str, int], provider: ModelProvider) -> str:
    """The sum that the clerk asks a customer for.

    Raises:
        agents.AgentsException: the clerk asks for no sum.
        openai.OpenAIError: the server fails.
    """
    config = RunConfig(model_provider=provider, tracing_disabled=True)
    result = await Runner.run(clerk(prices), customer, max_turns=MAX_TURNS, run_config=config)
    return str(result.final_output)


def main() -> None:
    """Serve one customer."""
    parser = argparse.ArgumentParser(description="Serve one customer.")
    parser.add_argument("customer", help="a number and an item, such as: 4 lemon")
    print(asyncio.run(serve(parser.parse_args().customer, PRICES, OpenAIProvider())))


if __name__ == "__main__":
    main()
