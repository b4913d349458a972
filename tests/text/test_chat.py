"""Prompts of chats: the template's text, its sandbox, and what is said without one."""

import json
import sys

import pytest

from dynbatch.errors import ArgumentError, CheckpointError
from dynbatch.text import ChatTemplate

pytest.importorskip("jinja2", reason="renders templates with jinja2, which is not installed")

CHATML = """{{ bos_token }}{% for message in messages %}
    {%- if message.role == "tool" %}{{ raise_exception("no such role") }}{% endif %}
    {{- "<|" + message.role + "|>" }}{% generation %}{{ message.content | trim }}{% endgeneration %}
{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}{{ tools | tojson if tools else "" }}"""
CHAT = [{"role": "user", "content": " Grüße "}, {"role": "assistant", "content": "Hello"}]


def written(folder, template=CHATML, **config):
    config = {"bos_token": {"content": "<s>"}, "chat_template": template, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_prompt_is_that_of_the_template_in_any_of_its_forms(tmp_path):
    expected = "<s><|user|>Grüße<|assistant|>Hello<|assistant|>"
    assert ChatTemplate.from_pretrained(written(tmp_path))(CHAT) == expected
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": CHATML}]
    template = ChatTemplate.from_pretrained(written(tmp_path, named, bos_token="<b>"))
    assert template(CHAT[:1], tools=[{"ü": 1}]) == '<b><|user|>Grüße<|assistant|>[{"ü": 1}]'
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert ChatTemplate.from_pretrained(tmp_path)(CHAT, add_generation_prompt=False) == " Grüße !"


@pytest.mark.slow
def test_a_prompt_is_that_of_transformers(tmp_path):
    reason = "compares with transformers, which is not installed"
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason=reason)
    ours = ChatTemplate(CHATML, {"bos_token": "<s>"})
    (theirs,), _ = utils.render_jinja_template(
        [CHAT], chat_template=CHATML, add_generation_prompt=True, bos_token="<s>"
    )
    assert ours(CHAT) == theirs


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set n = namespace(_x=1) %}",
        "{{ dict.__class__.__base__ }}",
        "{{ 1 // 0 }}",
        "{{ raise_exception('roles must alternate') }}",
    ],
)
def test_a_template_does_no_harm_and_its_failure_is_a_clear_error(template, tmp_path):
    read = ChatTemplate.from_pretrained(written(tmp_path, template))
    try:
        assert read(CHAT) == ""
    except CheckpointError as error:
        assert "tokenizer_config.json" in str(error) and "fix:" in str(error)


def test_what_is_no_template_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="it has no chat template"):
        ChatTemplate.from_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="not a template"):
        ChatTemplate.from_pretrained(written(tmp_path, "{% for %}"))
    for wrong in ("", "Hello", CHAT[0], None, iter(CHAT)):
        with pytest.raises(ArgumentError, match="messages is"):
            ChatTemplate(CHATML)(wrong)


def test_without_jinja2_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"pip install 'dynbatch\[chat\]'"):
        ChatTemplate.from_pretrained(written(tmp_path))
