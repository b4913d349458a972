"""The arguments that a command of this checkout reads; it does nothing but read them."""

import argparse
import importlib
from unittest import mock


class _Accepted(Exception):
    pass


def parsed(module, arguments):
    """The options of `python -m MODULE ARGUMENTS`; exits as the command does if it refuses them."""
    parse = argparse.ArgumentParser.parse_args

    def stop(self, args=None, namespace=None):
        raise _Accepted(parse(self, args, namespace))

    found = importlib.import_module(module)
    main = getattr(found, "main", None) or found.parse
    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop):
        try:
            main(arguments)
        except _Accepted as accepted:
            return accepted.args[0]
    raise AssertionError(f"{module} reads no arguments")
