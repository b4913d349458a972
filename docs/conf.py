"""Settings of the documentation site, which `make docs` builds (Sphinx, with MyST for Markdown)."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import dynbatch

sys.path.append(str(Path(__file__).parent / "extensions"))
from public_names import classes

project = "dynbatch"
version = release = dynbatch.__version__
author = "the dynbatch authors"

extensions = ["myst_nb", "sphinx.ext.autodoc", "docstrings", "api_links", "browser", "offline"]
# The source folder is the repository, so that pages of docs/ and of other folders link each other.
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "dynbatch/*/README.md",
    "examples/*/README.md",
]
myst_heading_anchors = 4  # as GitHub makes them
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_in_temp = True  # what a notebook writes is gone afterwards
# Notebooks run without a user's own settings of IPython, and without its remark on unencrypted TCP.
ipython = Path(tempfile.mkdtemp())
(ipython / "profile_default").mkdir()
(ipython / "profile_default/ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n")
os.environ["IPYTHONDIR"] = str(ipython)
atexit.register(shutil.rmtree, ipython, ignore_errors=True)

autodoc_default_options = {
    "members": True,
    "special-members": "__call__",
    # Members of bases that are nobody's business are shown, those of public classes with these.
    "inherited-members": ",".join(["object", "Exception", "Enum", *classes()]),
}
autodoc_class_content = "both"
autodoc_member_order = "bysource"
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

smartquotes = False

html_theme = "furo"
pygments_style, pygments_dark_style = "friendly", "github-dark"
html_title = "dynbatch"
html_static_path, html_extra_path = ["_static"], ["_root"]
html_css_files = ["site.css"]
html_copy_source = html_show_copyright = False
