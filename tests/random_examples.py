"""The number of examples that hypothesis tries: few in `make test`, more in `make test-all`.

The file imports hypothesis; only files of tests that need it anyway may import this one, and
`conftest.py`, which does without where it is not installed.
"""

from typing import Any

from hypothesis import settings

# No test depends on how fast the machine is. In CI, hypothesis repeats the same examples.
settings.register_profile("quick", settings(), deadline=None, max_examples=20)
settings.register_profile("all", settings(), deadline=None, max_examples=100)
settings.load_profile("quick")


def examples(quick: int, all: int = 100, **others: Any) -> settings:
    """Settings of a test that tries so many examples, and `all` of them under `--all`.

    `others` are other settings of hypothesis. A test without settings tries 20 and 100.
    """
    every = settings.default == settings.get_profile("all")
    return settings(max_examples=all if every else quick, **others)
