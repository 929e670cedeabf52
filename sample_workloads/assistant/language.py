"""The sample assistant's language: generated from a seed, with a known best accuracy.

A text is a session: a beginning, the user's name, then turns of words. The next token depends on the last word
and the class of the one before it, on open brackets (which close after a fixed number of words) and on the
name given at the start (which follows every ``recall`` token). Only the standard library
is used, and only ``random.Random.random``, whose sequence is the same in every Python version.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

VOCABULARY = 160
PAD, BOS, USER, ASSISTANT, RECALL = range(5)
FIRST_OPEN, FIRST_CLOSE, BRACKETS = 5, 9, 4
FIRST_NAME, NAMES = 13, 32
FIRST_WORD, WORDS = 45, 115
CLASSES = 4

TURN_PROBABILITY = 0.03
RECALL_PROBABILITY = 0.04
OPEN_PROBABILITY = 0.05
SUCCESSOR_PROBABILITIES = (0.86, 0.09, 0.05)

#: Each possible next token with its probability; the probabilities sum to 1.
Distribution = tuple[tuple[int, float], ...]


def _successor_table() -> tuple[tuple[tuple[int, ...], ...], ...]:
    """For each word and each class of the word before it: three different words that may follow."""
    rng = random.Random("latfix assistant grammar")
    table = []
    for _word in range(WORDS):
        row = []
        for _class in range(CLASSES):
            chosen: list[int] = []
            while len(chosen) < len(SUCCESSOR_PROBABILITIES):
                word = FIRST_WORD + int(rng.random() * WORDS)
                if word not in chosen:
                    chosen.append(word)
            row.append(tuple(chosen))
        table.append(tuple(row))
    return tuple(table)


SUCCESSORS = _successor_table()
_NAME_DISTRIBUTION: Distribution = tuple((FIRST_NAME + k, 1 / NAMES) for k in range(NAMES))


@dataclass(slots=True)
class State:
    """The state that determines the next token. ``words_left`` counts down inside a bracket; -1 outside."""

    last: int = PAD
    name: int = 0
    role: int = ASSISTANT
    word: int = 0
    word_class: int = 0
    bracket: int = 0
    words_left: int = -1

    def distribution(self) -> Distribution:
        """The possible next tokens with their probabilities."""
        if self.last == PAD:
            return ((BOS, 1.0),)
        if self.last == BOS:
            return _NAME_DISTRIBUTION
        if self.word == 0:
            return ((USER, 1.0),)
        if self.last == RECALL:
            return ((self.name, 1.0),)
        if self.words_left == 0:
            return ((FIRST_CLOSE + self.bracket, 1.0),)
        successors = SUCCESSORS[self.word - FIRST_WORD][self.word_class]
        if self.words_left > 0:
            return tuple(zip(successors, SUCCESSOR_PROBABILITIES, strict=True))
        plain = 1.0 - TURN_PROBABILITY - RECALL_PROBABILITY - OPEN_PROBABILITY
        return (
            *((w, p * plain) for w, p in zip(successors, SUCCESSOR_PROBABILITIES, strict=True)),
            (USER + ASSISTANT - self.role, TURN_PROBABILITY),
            (RECALL, RECALL_PROBABILITY),
            (FIRST_OPEN + self.word % BRACKETS, OPEN_PROBABILITY),
        )

    def advance(self, token: int) -> None:
        """Take ``token`` as the next one of the text."""
        if token >= FIRST_WORD:
            self.word_class = self.word % CLASSES
            self.word = token
            self.words_left -= self.words_left > 0
        elif token in (USER, ASSISTANT):
            if self.word == 0:  # the first words of a session follow from the name
                self.word = FIRST_WORD + self.name - FIRST_NAME
            self.role = token
        elif token >= FIRST_NAME:
            self.name = token
        elif token >= FIRST_CLOSE:
            self.words_left = -1
        elif token >= FIRST_OPEN:
            self.bracket = token - FIRST_OPEN
            self.words_left = self.bracket + 1
        self.last = token


def draw(distribution: Distribution, u: float) -> int:
    """The token at quantile ``u`` (from 0 up to 1) of the distribution."""
    for token, probability in distribution:
        u -= probability
        if u < 0.0:
            return token
    return distribution[-1][0]


def tokens(seed: str, length: int) -> list[int]:
    """The first ``length`` tokens of the session that belongs to ``seed``."""
    rng = random.Random(seed)
    state = State()
    text: list[int] = []
    for _ in range(length):
        distribution = state.distribution()
        token = distribution[0][0] if len(distribution) == 1 else draw(distribution, rng.random())
        state.advance(token)
        text.append(token)
    return text


def spell(token: int) -> str:
    """A token as text."""
    if token >= FIRST_WORD:
        k = token - FIRST_WORD
        return "bdfglmprst"[k % 10] + "aeiou"[k // 10 % 5] + "knrsz"[(k // 50 + k) % 5]
    if token >= FIRST_NAME:
        return "Name" + str(token - FIRST_NAME)
    if token >= FIRST_CLOSE:
        return ")]}>"[token - FIRST_CLOSE]
    if token >= FIRST_OPEN:
        return "([{<"[token - FIRST_OPEN]
    return ("", "<s>", "User:", "Assistant:", "dear")[token]
