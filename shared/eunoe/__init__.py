"""Eunoe: keeps what a chat's next answer needs inside a token budget, and says why."""
