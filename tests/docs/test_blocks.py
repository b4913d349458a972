import pytest

from docs import blocks

pytestmark = pytest.mark.slow

PAGE = """# A page

```python
x = 41
print("x is", x)
```

```text
x is 7
```

```sh
printf '%s\\n' "$HOME" > home.txt
pip install nothing
python -c "print('3.5 kB in 2 ms')"   # exit status 0
```

```text
120 MB in 1.5 s
```

```text
not an output
```

* a list

  ```python
  assert x == 41
  ```
"""


def written(folder, text):
    page = folder / "page.md"
    page.write_text(text, "utf-8")
    return page


def failure_of(folder, text):
    return blocks.run_apart(written(folder, text))[1]


def test_a_page_has_its_blocks_with_lines_and_outputs():
    found = blocks.blocks_of(PAGE)
    assert [(block.language, block.line, block.number) for block in found] == [
        ("python", 4, 1),
        ("sh", 13, 2),
        ("python", 29, 3),
    ]
    assert [block.output for block in found] == ["x is 7\n", "120 MB in 1.5 s\n", None]
    assert found[2].code == "assert x == 41\n"


def test_a_page_runs_in_one_namespace_and_says_what_it_left_out(tmp_path):
    said, failure = blocks.run_apart(written(tmp_path, PAGE))
    assert failure is None
    assert said["not run"] == ["`pip install nothing` changes the environment"]


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("```python\nx = 1\nx / 0\n```", [":6: block 2 (python)", "line 7", "ZeroDivisionError"]),
        ("```python\nraise SystemExit(0)\n```", [":6: block 2 (python)", "SystemExit"]),
        ("```python\nimport os\nos._exit(0)\n```", ["0 of 2 blocks ran"]),
        ("```python\nimport warnings\nwarnings.warn('old')\n```", ["UserWarning: old"]),
        ("```sh\nfalse\ntrue\n```", [":6: block 2 (sh)", "exit status 1"]),
        ("```sh\nno-such-command\n```", ["exit status 127"]),
        ("```sh\necho one\n```\n\n```text\ntwo\n```", [":6: block 2 (sh)", "-two", "+one"]),
    ],
)
def test_a_block_that_fails_names_page_line_and_block(tmp_path, block, said):
    failure = failure_of(tmp_path, f"```python\npass\n```\n\n{block}\n")
    assert str(tmp_path / "page.md") in failure or "blocks ran" in failure
    for words in said:
        assert words in failure


@pytest.mark.parametrize("text", ["```bash\nls\n```\n", "```python\nnever closed\n"])
def test_a_block_that_would_not_run_is_refused(tmp_path, text, capsys):
    page = written(tmp_path, text)
    assert len(blocks.run_pages([page])) == 1
    assert blocks.main([str(page)]) == 1
    assert str(page) in capsys.readouterr().err


def test_an_output_agrees_whatever_its_numbers_and_spaces_are():
    assert blocks.agrees("loss 2.81\n...\nend", "loss  0.7e-3\nmuch\nmore\nend\n")
    assert blocks.agrees("12 kB in 3.4 ms", "1.2 GiB in 7 s")
    assert blocks.agrees("-----\n1 2", "---\n10   20")
    assert not blocks.agrees("loss 2.81", "loss nan")
    assert not blocks.agrees("loss 2.81", "loss 2.81\nand more")
    assert not blocks.agrees("", "something")


def test_a_page_is_found_by_its_name():
    assert blocks.find_page("guides/threads") == blocks.ROOT / "docs/guides/threads.md"
    with pytest.raises(SystemExit, match="there is no page guides/thread"):
        blocks.find_page("guides/thread")


NEEDS = "```python\nimport {0}\nfrom {0}.part import x\n```\n"


def test_a_page_whose_package_is_missing_is_skipped_with_a_line_and_fails_where_all_must_run(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(blocks, "PACKAGES", {"no_such_package": "pip install no-such-package"})
    page = written(tmp_path, NEEDS.format("no_such_package"))
    assert blocks.main([str(page)]) == 0
    said = f"{page}: no_such_package is not installed: pip install no-such-package"
    assert capsys.readouterr().out == f"SKIPS {said}\n"
    assert blocks.main([str(page), "--all"]) == 1
    assert said in capsys.readouterr().err


def test_a_package_that_the_extra_brings_is_never_skipped(tmp_path):
    assert blocks.run_pages([written(tmp_path, NEEDS.format("no_such_package"))]) != []


def test_packages_that_may_be_missing_are_imported_by_pages_and_installed_in_ci():
    pages = [page for pattern in blocks.PAGES for page in blocks.ROOT.glob(pattern)]
    found = [block for page in pages for block in blocks.blocks_of(page.read_text("utf-8"))]
    ci = (blocks.ROOT / ".ci" / "run").read_text("utf-8")
    for name, command in blocks.PACKAGES.items():
        assert any(f"import {name}" in block.code for block in found)
        assert command.rpartition(" ")[2] in ci
    assert "make docs ARGS=--all" in ci


def test_the_site_is_built_without_running_a_page():
    make = (blocks.ROOT / "Makefile").read_text("utf-8")
    rule = make.partition("\nsite:")[2].partition("\n\n")[0]
    assert "sphinx" in rule and "blocks.py" not in rule
