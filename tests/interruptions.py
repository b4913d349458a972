"""A thread interrupted at each line it comes to by another: what a race needs, without luck."""

import sys
import threading


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
        lines = _Lines(files, event, line, second)
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

    def run(self):
        sys.settrace(self.trace)
        try:
            self.result = self.function()
        except Exception as error:
            self.result = error
        finally:
            sys.settrace(None)


class _Lines:
    """A trace function that starts the second thread at a line, and gives it time to end."""

    def __init__(self, files, event, line, second):
        self.files = files
        self.event = event
        self.left = line
        self.second = second
        self.seen = set()

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        frame.f_trace_opcodes = self.event == "opcode"
        place = (frame.f_code, frame.f_lasti if frame.f_trace_opcodes else frame.f_lineno)
        if event == self.event and place not in self.seen:
            self.seen.add(place)
            if self.left == 0:
                self.second.start()
                self.second.join(0.02)  # in vain where it waits for a lock
            self.left -= 1
        return self
