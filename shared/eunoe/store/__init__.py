"""What models no longer see of their chats, kept to be searched: one SQLite file for each chat."""

from .chats import ChatStore
from .places import ChatKey
from .tools import RECALL_TOOLS, STANDING_INSTRUCTION, ChatTools

__all__ = ["RECALL_TOOLS", "STANDING_INSTRUCTION", "ChatKey", "ChatStore", "ChatTools"]
