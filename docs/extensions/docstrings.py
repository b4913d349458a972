"""Docstrings as they stand in the code, in the form that Sphinx reads (reStructuredText).

Sections (`Args:`, `Shape:`, `Batches with:`, ...) become fields, code in single backticks becomes
code, indented lines become a block that is shown as it is, and no sign of the text means anything
else.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

SECTION = re.compile(
    r"(Args|Attributes|Class attributes|Keeps|Inputs|Parameters|Returns|Yields|Raises|Shape|Value"
    r"|Cost|Memory|Backward|Batches with|Source|Examples?):(?:\s+(.*))?"
)
ITEM = re.compile(r"([\w*.`]+(?:\([^)]*\))?(?:, [\w*.`]+)*):\s+(\S.*)")
ITEMISED = ("Args", "Attributes", "Class attributes", "Keeps", "Inputs", "Parameters", "Raises")
SPECIAL = re.compile(r"([\\*_|`<>])")
BULLET = re.compile(r"([*-]) +(.*)")


def inline(text: str) -> str:
    """One line of prose: code as code, and everything else as it stands."""
    parts = re.split(r"``?([^`\n]+)``?", text)
    line = ""
    for number, part in enumerate(parts):
        if number % 2:
            before = (
                "\\ " if line and not line[-1].isspace() and line[-1] not in "([{\"'-/:" else ""
            )
            line += f"{before}``{part.strip()}``"
        else:
            after = "\\ " if number and part[:1].isalnum() else ""
            line += after + SPECIAL.sub(r"\\\1", part)
    return line


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]


def paragraphs(lines: list[str]) -> list[list[str]]:
    """The lines between empty ones."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [paragraph for paragraph in found if paragraph]


def prose(lines: list[str]) -> list[str]:
    """Paragraphs, lists, doctests, and indented blocks that are shown as they are."""
    result: list[str] = []
    for paragraph in paragraphs(lines):
        if paragraph[0].startswith(">>>"):
            result += [*paragraph, ""]
        elif paragraph[0].startswith(" "):
            shown = textwrap.dedent("\n".join(paragraph)).split("\n")
            if result[-2:-1] == ["::"]:  # a block goes on after an empty line
                result = result[:-2]
            result += ["::", "", *indented(shown), ""]
        else:
            points: list[tuple[str, str]] = []
            for line in paragraph:
                bullet = BULLET.match(line)
                if bullet or not points:
                    points.append(("* ", bullet[2]) if bullet else ("", line))
                else:
                    points[-1] = points[-1][0], f"{points[-1][1]} {line.strip()}"
            result += [*(mark + inline(text) for mark, text in points), ""]
    return result


def items(lines: list[str]) -> list[str] | None:
    """`name: what it is` as a list of definitions, or None where a line is not of that form."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        item = None if line.startswith(" ") else ITEM.fullmatch(line)
        if item:
            found.append((item[1], [item[2]]))
        elif found and (line.startswith(" ") or not line):
            found[-1][1].append(line.strip())
        else:
            return None
    definitions = []
    for names, text in found:
        term = ", ".join(f"``{name.strip('`')}``" for name in names.split(", "))
        definitions += [term, f"    {inline(' '.join(filter(None, text)))}"]
    return definitions or None


def section(name: str, first: str, body: list[str]) -> list[str]:
    """A section as a field; an example as a doctest under its name."""
    body = textwrap.dedent("\n".join(body)).strip("\n").split("\n")
    if name.startswith("Example"):
        return [f".. rubric:: {name}", "", *prose([first, "", *body])]
    content = items(body) if name in ITEMISED and not first else None
    if content is None:
        content = prose([first, *body] if first else body)
        if first:  # lines go on in the paragraph, wherever they are lined up
            content = [inline(" ".join(line.strip() for line in [first, *body] if line))]
    return [f":{name}:", *indented(content), ""]


def restructured(lines: list[str]) -> list[str]:
    """A docstring in Sphinx's form."""
    result: list[str] = []
    text: list[str] = []
    number = 0
    while number < len(lines):
        heading = SECTION.fullmatch(lines[number])
        number += 1
        if heading is None:
            text.append(lines[number - 1])
            continue
        result += prose(text)
        text, body = [], []
        begun = bool(heading[2])  # beside its name: then lines go on in it until an empty one
        while number < len(lines):
            line = lines[number]
            begun = begun and bool(line) and not SECTION.fullmatch(line)
            if line and not line.startswith(" ") and not begun:
                break
            body.append(line)
            number += 1
        if result and heading[1] not in ("Example", "Examples") and result[-1] == "":
            while result and result[-1] == "":
                result.pop()
            result += [] if result and is_field(result) else [""]
        result += section(heading[1], heading[2] or "", body)
    return [*result, *prose(text)]


def is_field(result: list[str]) -> bool:
    """Whether what stands last is a field, which the next one joins."""
    for line in reversed(result):
        if not line.startswith(" ") and line:
            return re.match(r":[A-Z][a-z ]+:", line) is not None
    return False


def inherited(obj: Any) -> list[str]:
    """The docstring of a base that nobody else sees, where it has what the class is called with."""
    from public_names import public  # here, as the tests of this file have another path to it

    definer = next((base for base in obj.__mro__ if "__init__" in vars(base)), obj)
    is_shown = definer is obj or definer in public().values()
    if is_shown or not definer.__module__.startswith("dynbatch."):
        return []
    return (inspect.getdoc(definer) or "").split("\n")


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what == "class":
        example = lines.index("Example:") if "Example:" in lines else len(lines)
        lines[example:example] = ["", *inherited(obj), ""]
    lines[:] = restructured(lines)


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
