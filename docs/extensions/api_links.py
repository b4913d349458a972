"""Signatures as the source has them, and links from code to the reference.

Wherever a page or a docstring has the name of something public as code, `F.tanh` or
`Graph.backward`, it becomes a link; a type in a signature likewise.
"""

from __future__ import annotations

import inspect
from typing import Any

from docutils import nodes
from public_names import written
from sphinx.transforms.post_transforms import SphinxPostTransform


def text_of(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def signature(
    app: Any, what: str, name: str, obj: Any, options: Any, args: str, result: str
) -> Any:
    """The signature with its annotations as they are written, and without what nobody may give."""
    if what not in ("class", "exception", "function", "method"):
        return None
    try:
        found = inspect.signature(obj)
    except (TypeError, ValueError):
        return None
    parameters = []
    for parameter in found.parameters.values():
        refused = parameter.kind == parameter.VAR_KEYWORD and "Never" in text_of(
            parameter.annotation
        )
        if parameter.name == "self" or refused:
            continue
        if parameter.annotation is not parameter.empty:
            parameter = parameter.replace(annotation=Written(text_of(parameter.annotation)))
        parameters.append(parameter)
    text = str(found.replace(parameters=parameters, return_annotation=found.empty))
    given = found.return_annotation
    hidden = given is found.empty or what in ("class", "exception")
    return text, None if hidden else text_of(given)


class Written:
    """An annotation that `str(signature)` shows as it is written in the source."""

    __module__ = "builtins"

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def resolve(app: Any, env: Any, node: Any, content: Any) -> Any:
    """A link for the type of a signature where it is public, else the type alone."""
    if node.get("refdomain") != "py" or "refwarn" in node:  # a role of a page must find its target
        return None
    name = node["reftarget"].rpartition(".")[2]
    entries = env.domains["py"].objects.items()
    full = next(
        (full for full, entry in entries if is_class(entry) and full.endswith(f".{name}")), None
    )
    link = link_to(app, env, node["refdoc"], full, content)
    return content if link is None else link


def is_class(entry: Any) -> bool:
    return entry.objtype in ("class", "exception")


def link_to(app: Any, env: Any, page: str, full: str | None, content: Any) -> Any:
    """A link to what the reference has under a full name, or None."""
    entry = env.domains["py"].objects.get(full)
    if entry is None:
        return None
    uri = app.builder.get_relative_uri(page, entry.docname)
    return nodes.reference("", "", content, internal=True, refuri=f"{uri}#{entry.node_id}")


class LinkCode(SphinxPostTransform):
    """Code that is a public name becomes a link to it."""

    default_priority = 900

    def run(self, **_: Any) -> None:
        for literal in list(self.document.findall(nodes.literal)):
            if isinstance(literal.parent, (nodes.reference, nodes.title, nodes.term)):
                continue
            name = literal.astext().removesuffix("()").partition("(")[0]
            full = written().get(name)
            docname = self.env.current_document.docname
            link = link_to(self.app, self.env, docname, full, literal.deepcopy())
            if link is not None:
                literal.replace_self(link)


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-signature", signature)
    app.connect("missing-reference", resolve)
    app.add_post_transform(LinkCode)
    return {"parallel_read_safe": True}
