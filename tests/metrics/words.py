"""Prompts of a known beginning."""

from __future__ import annotations

WORDS = ("node", "pod", "volume", "weights", "cache", "server", "token", "queue", "answer", "replica")


def prompt(topic: int, words: int) -> str:
    """A text of ``words`` words: the same for the same topic, and another from its first word on for another one."""
    return " ".join(f"{WORDS[(topic * 7 + place) % len(WORDS)]} {topic * 31 + place}" for place in range(words // 2))
