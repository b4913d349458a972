"""Settings of the whole test suite."""

from hypothesis import settings

# No test depends on how fast the machine is. In CI, hypothesis repeats the same examples.
settings.register_profile("dynbatch", settings(), deadline=None)
settings.load_profile("dynbatch")
