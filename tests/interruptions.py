"""A function interrupted at each line it comes to, by another thread or by an exception: what a
race or Ctrl-C needs, without luck."""

import dis
import sys
import threading
from functools import cache


def interrupted(make, *files, event="line"):
    """Run one function again and again, each time interrupted at another line by a second one.

    A line that runs several times is interrupted before the first.

    Args:
        make:    gives (function, interruption), fresh for each run. The interruption runs in a
                 thread of its own; if it waits for a lock that the function holds, until later.
        files:   whose lines are meant: the ends of their names.
        event:   "opcode" interrupts within lines too.

    Yields:
        what the function returned or raised, and the same of the interruption, for each line.
    """
    line = 0
    while True:
        function, interruption = make()
        second = _Thread(interruption)
        lines = _Lines(files, event, line, second.interrupt)
        first = _Thread(function, lines)
        first.start()
        first.join()
        if lines.left >= 0:  # it has fewer lines
            return
        second.join()
        yield first.result, second.result
        line += 1


class _Thread(threading.Thread):
    def __init__(self, function, trace=None):
        super().__init__()
        self.function = function
        self.trace = trace
        self.result = None

    def interrupt(self):
        self.start()
        self.join(0.02)  # in vain where it waits for a lock

    def run(self):
        sys.settrace(self.trace)
        try:
            self.result = self.function()
        except Exception as error:
            self.result = error
        finally:
            sys.settrace(None)


def broken_off(function, files, callers=1, every=1, act=None, first=0):
    """Call a function again and again, each time with a KeyboardInterrupt at another line.

    Left out are lines at which the interpreter looks for no signal: `try:` alone, and the end of a
    `with` block whose function of C has not been called yet.

    Args:
        files:   whose lines are meant: the ends of their names.
        callers: a line counts once for each way on which it was come to, as far back as so many
                 functions; None counts each time.
        every:   take one line of so many.
        first:   the number of the first line that is taken.
        act:     is done in place of raising a KeyboardInterrupt.

    Yields:
        where it was interrupted, and what the function raised, for each line.
    """
    line = first
    while True:
        lines = _Lines(files, "line", line, act or _raise_interrupt, callers)
        raised = None
        before = sys.gettrace()
        sys.settrace(lines)
        try:
            function()
        except (Exception, KeyboardInterrupt) as error:
            raised = error.with_traceback(None)
        finally:
            sys.settrace(before)
        if lines.left >= 0:  # it has fewer lines
            return
        yield lines.place, raised
        line += every


def _raise_interrupt():
    raise KeyboardInterrupt


@cache
def _passed_over(code):
    """Offsets of a function at which no signal is taken, though a line begins there."""
    steps = list(dis.get_instructions(code))
    passed = {step.offset for step in steps if step.opname == "NOP"}
    for number, step in enumerate(steps):
        names = [(each.opname, each.argval) for each in steps[number : number + 4]]
        if names[:3] == [("LOAD_CONST", None)] * 3 and names[3] in (("PRECALL", 2), ("CALL", 2)):
            passed.add(step.offset)  # a `with` block ends
    return passed


class _Lines:
    """A trace function that acts at a line."""

    def __init__(self, files, event, line, act, callers=1):
        self.files = files
        self.event = event
        self.left = line
        self.act = act
        self.callers = callers
        self.seen = set()
        self.place = ""

    def _is_new(self, frame):
        if self.event == "line" and frame.f_lasti in _passed_over(frame.f_code):
            return False
        if self.callers is None:
            return True
        way, caller = [], frame
        while caller is not None and len(way) < self.callers:
            at = caller.f_lasti if self.event == "opcode" else caller.f_lineno
            way.append((caller.f_code, at))
            caller = caller.f_back
        way = tuple(way)
        is_new = way not in self.seen
        self.seen.add(way)
        return is_new

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        frame.f_trace_opcodes = self.event == "opcode"
        if event == self.event and self._is_new(frame):
            self.left -= 1
            if self.left == -1:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                self.act()
        return self
