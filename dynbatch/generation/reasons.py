"""Reasons for the end of a result: the `reason` of events and results."""

END, LENGTH, STOP, NO_TOKEN, FAILED = "end", "length", "stop string", "no token", "failed"
