"""Takes the pictures of the documentation: a long chat in a real Open WebUI, looked at in the observer.

The provider is scripted, so that the pictures are the same every time; its prices are those of a common
small model.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from install import SOURCE, OpenWebUI, Wish, install

from .browser import chromium, sign_in
from .client import Chat, Client
from .hosting import Observed, hosted, observing, tell
from .upstream import Call, Upstream

STORY = Path(__file__).with_name("rowing-boat.md")
FOLDER = Path(__file__).resolve().parents[2] / "docs"
TOKEN = "token-of-the-screenshots"
MODEL = "gpt-4.1-mini"
# Dollars a million tokens: prompt, prompt from the cache, reply.
PRICES = (0.40, 0.10, 1.60)

TIMBER = '''
PRICES = {
    "larch": [("boat grade, 22 mm, air-dried", 41.80), ("boat grade, 28 mm", 52.40), ("construction", 20.90)],
    "oak": [("green, 25 x 25 mm, a meter", 2.90), ("kiln-dried, 25 x 25 mm, a meter", 2.10), ("28 mm", 88.00)],
}

class Tools:
    """The sawmill's list."""

    def timber_prices(self, wood: str) -> str:
        """
        Look up what the sawmill asks for a wood.
        :param wood: The wood.
        """
        rows = [{"wood": wood, "cut": cut, "price": price, "stock": 12 + 7 * i} for i, (cut, price)
                in enumerate(PRICES[wood] * 6)]
        return str({"sawmill": "upper valley", "currency": "EUR", "rows": rows})
'''


def story() -> dict[str, str]:
    """The chat: each question with its answer."""
    parts = re.split(r"^# (.+)\n\n", STORY.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {question: answer.strip() for question, answer in zip(parts[::2], parts[1::2], strict=True)}


class Storyteller(Upstream):
    """A provider that gives the story's answers, calls its tool, and says what they cost."""

    models: ClassVar[Mapping[str, Mapping[str, int]]] = {MODEL: {"context_length": 1_047_576}}

    def __init__(self, answers: Mapping[str, str]) -> None:
        super().__init__()
        # The filter takes flags out of what the model sees.
        self.answers = {re.sub(r"^!\S+ ", "", question): answer for question, answer in answers.items()}

    def usage(self, call: Call, reply: dict[str, Any]) -> dict[str, Any]:
        """What it reports, with what it cost, as OpenRouter does."""
        usage = super().usage(call, reply)
        fresh, cached, out = PRICES
        sums = (call.tokens - call.cached) * fresh + call.cached * cached + usage["completion_tokens"] * out
        return {**usage, "cost": sums / 1_000_000}

    def reply(self, call: Call, verb: str, arguments: list[str]) -> dict[str, Any]:
        """The story's answer, or first the call of its tool."""
        question = next(known for known in self.answers if call.question.endswith(known))
        answer = self.answers[question]
        tool = re.match(r"TOOL (\w+) (\w+)\n", answer)
        if tool and call.messages[-1]["role"] != "tool":
            self.rounds[question] += 1
            function = {"name": tool[1], "arguments": f'{{"wood": "{tool[2]}"}}'}
            called = {"id": f"call_{len(self.calls)}", "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [called]}
        return {"role": "assistant", "content": answer[tool.end() :] if tool else answer}


def furnish(api: OpenWebUI, observer: Observed, budget: int) -> None:
    """Put the filter, the model and the tool in."""
    valves = {"max_tokens": budget, "observer_content": "full"}
    wish = Wish(SOURCE.read_text(encoding="utf-8"), valves, observer.address, observer.token)
    install(api, wish, tell)
    meta = {"capabilities": {"builtin_tools": False}}
    form = {"id": MODEL, "base_model_id": None, "name": MODEL, "params": {}, "meta": meta}
    api.call("POST", "/api/v1/models/create", form)
    tool = {
        "id": "timber",
        "name": "Timber",
        "content": TIMBER,
        "meta": {"description": "The sawmill's list."},
    }
    api.call("POST", "/api/v1/tools/create", tool)
    api.call("GET", "/api/models?refresh=true")


def talk(api: OpenWebUI, answers: Mapping[str, str]) -> None:
    """Have the whole chat, turn by turn."""
    client = Client(api)
    chat = Chat([MODEL], system="You are a patient boatbuilder. Give amounts and reasons.")
    for number, question in enumerate(answers, 1):
        turn = client.say(chat, question, tool_ids=["timber"], background_tasks={"title_generation": False})
        if turn.error:
            raise SystemExit(f"turn {number} failed: {turn.error}")
        sys.stdout.write(
            f"{number:3} {turn.replies[0].get('statusHistory', [{}])[-1].get('description', '')}\n"
        )


def take(observer: Observed, question: str, folder: Path, height: int) -> None:
    """Take the picture of the last run's page."""
    run = observer.run_about(question, finished=True)
    with chromium() as browser:
        page = browser.new_context(
            viewport={"width": 1440, "height": height}, color_scheme="light"
        ).new_page()
        sign_in(page, observer)
        page.goto(f"{observer.address}/runs/{run['run_id']}")
        page.locator("#ledger tbody tr").first.wait_for()
        path = folder / "run-page.png"
        page.screenshot(path=path)
        sys.stdout.write(f"{path}\n")


def main() -> None:
    """Have the chat and take the pictures."""
    parser = argparse.ArgumentParser(prog="make screenshots", description=__doc__)
    parser.add_argument("--budget", type=int, default=2000, help="the filter's max_tokens")
    parser.add_argument("--height", type=int, default=1500, help="of the picture")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    answers = story()
    with (
        tempfile.TemporaryDirectory() as data,
        Storyteller(answers) as provider,
        observing(Path(data), TOKEN) as observer,
        hosted(Path(data), provider.url) as running,
    ):
        furnish(running.api, observer, chosen.budget)
        talk(running.api, answers)
        take(observer, list(answers)[-1][:40], chosen.folder, chosen.height)


if __name__ == "__main__":
    main()
