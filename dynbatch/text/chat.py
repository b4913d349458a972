"""`ChatTemplate`: the prompt that a chat's messages make, by the template of a checkpoint's folder.

A template is a program of the language Jinja, out of a folder that is not trusted: it runs in
Jinja's sandbox, where it can read what it is given and nothing else.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from dynbatch.arguments import refused, shown
from dynbatch.models.pretrained.folder import caused, damaged, fault, file_of, read_json

FILE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
MOST_CHARACTERS = 1 << 20
LEAST_VERSION = (3, 1, 6)  # older ones let templates out of the sandbox


class ChatTemplate:
    """A template that makes a prompt of messages.

    Args:
        source: the template.
        tokens: texts of special tokens that it may read, such as {"bos_token": "<s>"}.
        path:   of the file, for errors.

    Raises:
        ImportError:     `jinja2` is not installed, or older than 3.1.6.
        CheckpointError: it is not a template.
    """

    def __init__(
        self, source: str, tokens: Mapping[str, str] | None = None, path: str | Path = FILE
    ) -> None:
        self._path, self.tokens = Path(path), dict(tokens or {})
        environment = _environment()
        try:
            self._template: Any = environment.from_string(source)
        except Exception as error:  # of Jinja's parser, or too deep for it
            raise damaged(self._path, f"not a template ({error})") from error

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """The template of a folder: chat_template.jinja, or that of tokenizer_config.json.

        Where there are several, the one named "default".

        Raises:
            ImportError:     `jinja2` is not installed, or older than 3.1.6.
            CheckpointError: there is none, or it is damaged.
        """
        folder = Path(folder)
        has_config = (folder / CONFIG).exists()
        config = read_json(file_of(folder, CONFIG), 1 << 26) if has_config else {}
        if (folder / FILE).exists():
            path = file_of(folder, FILE)
            source: Any = path.read_text("utf-8", "replace")
        else:
            path, source = folder / CONFIG, config.get("chat_template")
        if isinstance(source, list):
            named = [each for each in source if isinstance(each, dict)]
            source = {each.get("name"): each.get("template") for each in named}.get("default")
        if not isinstance(source, str) or len(source) > MOST_CHARACTERS:
            raise fault(
                folder, f"it has no chat template, neither {FILE} nor one in {CONFIG}",
                "take a model that was trained on chats, or write the prompt yourself",
            )  # fmt: skip
        return cls(source, _tokens_of(config), path)

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:  # fmt: skip
        """The prompt, with all special tokens in it: encode it with `special=False`.

        Args:
            messages: such as {"role": "user", "content": "Hello"}.
            add_generation_prompt: whether it ends where the model's answer begins.
            variables: others that the template reads, such as tools or enable_thinking.

        Raises:
            ArgumentError:   messages are not a list of dicts.
            CheckpointError: the template refuses them, or fails.
        """
        if (
            isinstance(messages, str)
            or not isinstance(messages, Sequence)
            or not all([isinstance(message, Mapping) for message in messages])
        ):
            raise refused(
                "ChatTemplate", f"messages is {shown(messages)}", "a list of dicts",
                'give [{"role": "user", "content": "Hello"}]',
            )  # fmt: skip
        values = {"tools": None, "documents": None, **self.tokens, **variables}
        try:
            text: str = self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt, **values,
            )  # fmt: skip
        except Exception as error:  # what a template raises, or meets in the sandbox
            raise caused(
                self._path, "prompt", error, "give the messages that it expects"
            ) from error
        return text


def _tokens_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Texts of the special tokens that tokenizer_config.json names."""
    tokens = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def _environment() -> Any:
    """Jinja's sandbox with the functions and filters that templates expect, as `transformers`."""
    try:
        jinja2 = importlib.import_module("jinja2")
        sandbox, ext = [importlib.import_module(f"jinja2.{name}") for name in ("sandbox", "ext")]
    except ImportError as error:
        raise ImportError(
            f"a chat template needs jinja2, which is not installed ({error}).\n"
            "  fix: pip install 'dynbatch[chat]', which has it"
        ) from error
    version = tuple([int(part) for part in jinja2.__version__.split(".")[:3] if part.isdecimal()])
    if version < LEAST_VERSION:
        raise ImportError(
            f"jinja2 {jinja2.__version__} lets templates out of its sandbox.\n"
            "  fix: pip install -U 'jinja2>=3.1.6'"
        )

    class Generation(ext.Extension):  # type: ignore[misc,name-defined]
        """The tags around a model's answer, which change nothing in a prompt."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    class TemplateNamespace(jinja2.utils.Namespace):  # type: ignore[misc,name-defined]
        """A namespace without attributes that lead to Python's own."""

        def __init__(*args: Any, **values: Any) -> None:  # so that a value may be called "self"
            self, values = args[0], dict(*args[1:], **values)
            jinja2.utils.Namespace.__init__(self)
            for name, value in values.items():
                self[name] = value

        def __setitem__(self, name: Any, value: Any) -> None:
            if str(name).startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace with {name!r}")
            super().__setitem__(name, value)

    class TemplateDict:
        """`dict` as templates may use it: no class, which would lead to others."""

        def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
            return dict(*args, **values)

        def fromkeys(self, *args: Any) -> dict[Any, Any]:
            return dict.fromkeys(*args)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, "indent": indent, **options})

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["dict"], environment.globals["namespace"] = (
        TemplateDict(),
        TemplateNamespace,
    )
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
