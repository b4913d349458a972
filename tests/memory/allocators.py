"""Every allocator, at the settings that tests try."""

from functools import partial

from dynbatch.memory import Arena, Buddy, Limit, Retry, SizeClasses, Statistics

ALLOCATORS = {
    "arena": Arena,
    "arena without growth": partial(Arena, growth=0.0),
    "arena in an arena": lambda upstream: Arena(Arena(upstream, growth=1.0)),
    "buddy": Buddy,
    "size classes": SizeClasses,
    "two size classes": partial(SizeClasses, per_doubling=2),
    "size classes over an arena": lambda upstream: SizeClasses(Arena(upstream)),
}


def stack(allocator, upstream, limit_bytes=None):
    """(counters above, counters below) of an allocator, as a pool composes them."""
    below = Statistics(upstream)
    return Statistics(Retry(allocator(Limit(below, limit_bytes)))), below
