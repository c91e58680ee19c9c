"""Chats with Open WebUI as its own page does, over HTTP alone."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from install import OpenWebUI

# A turn against a scripted provider takes well under a second; the machine may be busy.
TURN_SECONDS = 60.0


@dataclass
class Chat:
    """A chat as the page holds it: its id and the message that the next turn hangs on."""

    models: Sequence[str] = ("plain",)
    id: str = ""
    last: str | None = None
    system: str = ""
    history: list[dict[str, str]] = field(default_factory=list)  # only of temporary chats

    @classmethod
    def temporary(cls, *models: str) -> Chat:
        """A chat that Open WebUI does not store; the page sends all messages with every turn."""
        return cls(models or ("plain",), id=f"temporary:{uuid.uuid4().hex}")

    @property
    def is_temporary(self) -> bool:
        """Whether Open WebUI stores nothing of it."""
        return self.id.startswith("temporary:")


@dataclass(frozen=True)
class Turn:
    """What one turn left in the chat."""

    user: str
    replies: list[dict[str, Any]]

    @property
    def text(self) -> str:
        """The reply of the first model."""
        return str(self.replies[0].get("content", ""))

    @property
    def error(self) -> Any:
        """What the first model's reply says went wrong; None if nothing did."""
        return self.replies[0].get("error")


class Client:
    """One person at Open WebUI."""

    def __init__(self, server: OpenWebUI) -> None:
        self.server = server

    def say(self, chat: Chat, text: str, **form: Any) -> Turn:
        """Send a message and wait until every model has answered and all hooks have run."""
        return self._turn(chat, self._message(chat, text), {"parent_id": chat.last, **form})

    def regenerate(self, chat: Chat, turn: Turn) -> Turn:
        """Ask for another answer to the same message."""
        message = self.messages(chat)[turn.user]
        return self._turn(chat, message, {"parent_id": message.get("parentId")})

    def edit(self, chat: Chat, turn: Turn, text: str) -> Turn:
        """Send a message again with another text, beside the old one."""
        chat.last = self.messages(chat)[turn.user].get("parentId")
        return self.say(chat, text)

    def resume(self, chat: Chat, turn: Turn) -> Turn:
        """Let the model continue its reply."""
        reply = turn.replies[0]["id"]
        message = self.messages(chat)[turn.user]
        return self._turn(chat, message, {"parent_id": turn.user, "assistant_message_id": reply}, [reply])

    def stop(self, chat: Chat, text: str) -> dict[str, Any]:
        """Send a message, press Stop as soon as the reply has begun, and answer what is stored of it."""
        ids = self._send(chat, self._message(chat, text), {"parent_id": chat.last})
        time.sleep(1)
        self.server.call("POST", f"/api/tasks/chat/{chat.id}/stop")
        deadline = time.monotonic() + TURN_SECONDS
        while self.server.call("GET", f"/api/tasks/chat/{chat.id}")["task_ids"]:
            assert time.monotonic() < deadline, "the turn did not stop"
            time.sleep(0.05)
        return self.messages(chat)[ids[0]]

    def _message(self, chat: Chat, text: str) -> dict[str, Any]:
        """A new user message at the end of the chat."""
        return {
            "id": uuid.uuid4().hex,
            "parentId": chat.last,
            "role": "user",
            "content": text,
            "timestamp": int(time.time()),
            "models": list(chat.models),
        }

    def _turn(
        self,
        chat: Chat,
        message: Mapping[str, Any],
        form: Mapping[str, Any],
        replies: Sequence[str] = (),
    ) -> Turn:
        ids = self._send(chat, message, form, replies)
        self.wait(chat, ids)
        if chat.is_temporary:
            said = {"role": "user", "content": str(message["content"])}
            chat.history += [said, {"role": "assistant", "content": f"Answer {len(chat.history) // 2 + 1}."}]
            return Turn(str(message["id"]), [{"id": reply} for reply in ids])
        stored = self.messages(chat)
        return Turn(str(message["id"]), [stored[reply] for reply in ids])

    def _send(
        self,
        chat: Chat,
        message: Mapping[str, Any],
        form: Mapping[str, Any],
        replies: Sequence[str] = (),
    ) -> list[str]:
        """Send a turn as the page does; answer the ids of the replies to come."""
        ids = list(replies) or [uuid.uuid4().hex for _ in chat.models]
        system = [{"role": "system", "content": chat.system}] if chat.system else []
        said = {"role": "user", "content": str(message["content"])}
        several = [
            {"model_id": model, "message_id": reply, "modelIdx": index}
            for index, (model, reply) in enumerate(zip(chat.models, ids, strict=True))
        ]
        body = {
            "stream": True,
            "model": chat.models[0],
            "messages": [*system, *chat.history, said] if chat.is_temporary else system,
            "session_id": "no-socket",
            "params": {},
            "features": {},
            "user_message": {**message, "childrenIds": ids},
            **({"message_ids": several} if len(ids) > 1 else {"id": ids[0]}),
            **({"chat_id": chat.id} if chat.id else {}),
            **form,
        }
        chat.id = self.server.call("POST", "/api/chat/completions", body)["chat_id"]
        chat.last = ids[0]
        return ids

    def wait(self, chat: Chat, replies: Sequence[str], seconds: float = TURN_SECONDS) -> None:
        """Wait until the replies are done and no task of the chat runs, so that `outlet` has run too."""
        deadline = time.monotonic() + seconds
        while not self._is_over(chat, replies):
            assert time.monotonic() < deadline, f"the turn was not over within {seconds:.0f} s"
            time.sleep(0.05)

    def _is_over(self, chat: Chat, replies: Sequence[str]) -> bool:
        if self.server.call("GET", f"/api/tasks/chat/{chat.id}")["task_ids"]:
            return False
        if chat.is_temporary:
            return True
        stored = self.messages(chat)
        return all(stored.get(reply, {}).get("done") for reply in replies)

    def stored(self, chat: Chat) -> dict[str, Any]:
        """The whole chat as Open WebUI stores it."""
        return dict(self.server.call("GET", f"/api/v1/chats/{chat.id}"))

    def messages(self, chat: Chat) -> dict[str, dict[str, Any]]:
        """The stored messages by id, of all branches."""
        return dict(self.stored(chat)["chat"]["history"]["messages"])

    def import_chat(self, turns: Sequence[tuple[str, str]], models: Sequence[str] = ("plain",)) -> Chat:
        """Store a chat of finished turns, as an import does."""
        stored: dict[str, dict[str, Any]] = {}
        last: str | None = None
        for position, text in enumerate(part for turn in turns for part in turn):
            key = uuid.uuid4().hex
            role = "assistant" if position % 2 else "user"
            more = {"model": models[0], "done": True} if position % 2 else {"models": list(models)}
            stored[key] = {
                "id": key,
                "parentId": last,
                "childrenIds": [],
                "role": role,
                "content": text,
                "timestamp": int(time.time()),
                **more,
            }
            if last:
                stored[last]["childrenIds"].append(key)
            last = key
        history = {"messages": stored, "currentId": last}
        form = {"chat": {"title": "An imported chat", "models": list(models), "history": history}}
        return Chat(models, self.server.call("POST", "/api/v1/chats/new", form)["id"], last)

    def complete(
        self, messages: Sequence[Mapping[str, Any]], model: str = "plain", **form: Any
    ) -> dict[str, Any]:
        """Call the API as a program does: no chat, no ids."""
        body = {"model": model, "messages": list(messages), "stream": False, **form}
        return dict(self.server.call("POST", "/api/chat/completions", body))

    def complete_stream(self, messages: Sequence[Mapping[str, Any]], model: str = "plain") -> list[str]:
        """Call the API for a stream and answer its data lines."""
        body = {"model": model, "messages": list(messages), "stream": True}
        with self.server.http.stream("POST", "/api/chat/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            return [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
