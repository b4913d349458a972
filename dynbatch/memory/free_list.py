"""Free stretches of a line of bytes or elements: split where they are taken, joined where free."""

from __future__ import annotations

from bisect import bisect_left, insort


class FreeList:
    """Best fit: the smallest stretch that has room is taken first, of equal ones the lowest.

    Cost: O(log n) comparisons to take or give, and a shift of the list of n stretches.
    Source: Knuth, The Art of Computer Programming 1, section 2.5 (best fit; boundary tags).
    """

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}

    @property
    def largest(self) -> int:
        """The size of the largest; 0 where there is none."""
        return self._by_size[-1][0] if self._by_size else 0

    def take(self, size: int, alignment: int = 1) -> int | None:
        """Take `size` from a multiple of `alignment` on; returns where, or None without room."""
        first = bisect_left(self._by_size, (size, 0))
        # A larger stretch may start so that less room is left; a few are tried.
        for room, start in self._by_size[first : first + 8]:
            offset = -(-start // alignment) * alignment
            if offset + size <= start + room:
                self.remove(start)
                self._add(start, offset)
                self._add(offset + size, start + room)
                return offset
        return None

    def give(self, start: int, end: int) -> None:
        """From `start` to before `end` is free; its free neighbours become one with it."""
        if end in self._end_of:
            following = end
            end = self._end_of[following]
            self.remove(following)
        if start in self._start_of:
            start = self._start_of[start]
            self.remove(start)
        self._add(start, end)

    def remove(self, start: int) -> None:
        """Take the free stretch that starts there out of the list."""
        end = self._end_of.pop(start)
        del self._start_of[end]
        del self._by_size[bisect_left(self._by_size, (end - start, start))]

    def cut(self, end: int) -> int:
        """Take out the free stretch that ends there; returns where it began, else `end`."""
        start = self._start_of.get(end)
        if start is None:
            return end
        self.remove(start)
        return start

    def _add(self, start: int, end: int) -> None:
        if start < end:
            insort(self._by_size, (end - start, start))
            self._end_of[start] = end
            self._start_of[end] = start
