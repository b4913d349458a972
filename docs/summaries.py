"""Writes into docs/api what each name is in a line, so that the pages also read on a code host.

python docs/summaries.py

A code host shows the directives of the reference as they are. Above each block of them stands a
table of its names, with their arguments and the first sentences of their docstrings.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from pathlib import Path

API = Path(__file__).parent / "api"
BLOCK = re.compile(r"(?:<!-- names -->\n.*?<!-- /names -->\n\n)?(```\{eval-rst\}\n.*?\n```)", re.S)
DIRECTIVE = re.compile(
    r"^\.\. (currentmodule|autoclass|autofunction|autoexception):: ([\w.]+)", re.M
)
LONGEST = 60
"""Characters of a name with its arguments; of a longer one only the name is shown."""


def with_tables(text: str) -> str:
    """A page whose blocks of directives have their tables above them."""
    return BLOCK.sub(lambda match: table(match[1]) + match[1], text)


def table(block: str) -> str:
    """The names of a block in a table, or nothing where it has none."""
    module, rows = "", []
    for kind, name in DIRECTIVE.findall(block):
        if kind == "currentmodule":
            module = name
        else:
            named = pkgutil.resolve_name(f"{module}.{name}" if module else name)
            rows.append(f"| `{call(name, named)}` | {summary(named)} |\n")
    if not rows:
        return ""
    return f"<!-- names -->\n| | |\n|---|---|\n{''.join(rows)}\n<!-- /names -->\n\n"


def call(name: str, named: object) -> str:
    """A name with its arguments, as one would write the call, where that is short."""
    if isinstance(named, type) and issubclass(named, BaseException):
        return name
    try:
        parameters = _parameters(named)
    except (TypeError, ValueError):
        return name
    shown = [f"{STARS.get(each.kind, '')}{each.name}{default(each)}" for each in parameters]
    whole = f"{name}({', '.join(shown)})"
    return whole if len(whole) <= LONGEST else name


def _parameters(named: object) -> list[inspect.Parameter]:
    """The parameters of a call."""
    # A class with a `__new__` of its own has the parameters of that before Python 3.11.4.
    if isinstance(named, type) and inspect.isfunction(named.__init__):
        return list(inspect.signature(named.__init__).parameters.values())[1:]
    return list(inspect.signature(named).parameters.values())  # type: ignore[arg-type]


STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def default(parameter: inspect.Parameter) -> str:
    """A parameter's default value as a call has it."""
    value = parameter.default
    return "" if value is inspect.Parameter.empty else f"={value!r}"


def summary(named: object) -> str:
    """The first sentence of a docstring."""
    paragraph = " ".join((inspect.getdoc(named) or "").split("\n\n")[0].split())
    sentence = re.match(r".*?[.:](?=\s|$)", paragraph)
    return re.sub(r"([|*<\[])", r"\\\1", (sentence[0] if sentence else paragraph).rstrip(":"))


def main() -> int:
    """Write all pages. Returns the exit status."""
    for page in sorted(API.glob("*.md")):
        text = page.read_text("utf-8")
        if (written := with_tables(text)) != text:
            page.write_text(written, "utf-8")
            print(f"wrote {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
