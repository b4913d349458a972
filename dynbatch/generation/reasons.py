"""Why a result ends: the `reason` of events and results."""

END, LENGTH, STOP, NO_TOKEN, FAILED = "end", "length", "stop string", "no token", "failed"
