"""A check in a forked child."""

import os
import warnings


def in_child(check):
    """Whether `check()` holds in a forked child; None if the child did not end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks of several threads
        child = os.fork()
    if not child:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0
