"""`TextStream`: the text of tokens as they come, whole code points only, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dynbatch.backend import Array

REPLACEMENT = "�"


class Detokenizer(Protocol):
    """A tokenizer, as far as text is made of ids."""

    def decode(self, ids: Array | Sequence[int], /) -> str: ...


class TextStream:
    """Turns the tokens of one result into pieces of text, which joined are the text of all tokens.

    A piece ends before a code point whose bytes have not all come, and before what may be the
    beginning of a stop string. Text behind a stop string is not given out, nor is that string.

    Args:
        tokenizer:    anything with `decode(ids) -> str`, which writes U+FFFD for bytes that are not
                      (yet) UTF-8.
        stop_strings: that end the text.

    Attributes:
        is_stopped: whether a stop string has come.

    Example:
        >>> from dynbatch.text import ByteTokenizer
        >>> stream = TextStream(ByteTokenizer(), stop_strings=("!",))
        >>> [stream.put(byte) for byte in "né!".encode()], stream.is_stopped
        (['n', '', 'é', ''], True)
    """

    def __init__(self, tokenizer: Detokenizer, stop_strings: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stop_strings)
        self._ids: list[int] = []
        # Ids before `_read` are text that is settled; they are decoded again from `_before` on,
        # for what a token stands for may depend on those right before it.
        self._before = 0
        self._read = 0
        self._held = ""
        self.is_stopped = False

    def put(self, token: int) -> str:
        """Take a token; return the text that is certain now and was not before."""
        if self.is_stopped:
            return ""
        self._ids.append(int(token))
        text = self._decoded(self._before, len(self._ids))
        settled = self._decoded(self._before, self._read)
        if text.endswith(REPLACEMENT) or len(text) <= len(settled):
            return ""
        self._before, self._read = self._read, len(self._ids)
        return self._released(text[len(settled) :], is_last=False)

    def end(self) -> str:
        """Return the rest, once no more tokens come; broken code points are U+FFFD there."""
        if self.is_stopped:
            return ""
        text = self._decoded(self._before, len(self._ids))
        settled = self._decoded(self._before, self._read)
        self._before, self._read = self._read, len(self._ids)
        return self._released(text[len(settled) :], is_last=True)

    def _decoded(self, first: int, end: int) -> str:
        return self._tokenizer.decode(self._ids[first:end])

    def _released(self, text: str, *, is_last: bool) -> str:
        """The part of held back and new text that may be given out."""
        text = self._held + text
        ends = [end for stop in self._stops if (end := text.find(stop)) >= 0]
        if ends:
            self.is_stopped, self._held = True, ""
            return text[: min(ends)]
        held = 0 if is_last else max([_overlap(text, stop) for stop in self._stops], default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
