"""Settings of the documentation site, which `make docs` builds (Sphinx, with MyST for Markdown)."""

import dynbatch

project = "dynbatch"
version = release = dynbatch.__version__
author = "the dynbatch authors"

extensions = ["myst_parser"]
# The source folder is the repository, so that pages of docs/ and of other folders link each other.
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
    "dynbatch/*/README.md",
    "examples/*/README.md",
]
myst_heading_anchors = 4  # as GitHub makes them

html_theme = "furo"
html_title = "dynbatch"
