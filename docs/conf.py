"""How Sphinx builds the site from these pages; `scripts/docs` calls it."""

import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "central-dispatcher"
version = release = version_of(project)
html_title = f"{project} {version}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "docstrings",
    "site_directives",
]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "scorer.js")
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

# Pages: links and fences as on a forge.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
suppress_warnings = [
    "myst.header",  # generated parts begin where their page does
]
highlight_language = "none"
pygments_style = "friendly"

# A copy button copies what a reader types: no prompt, no output below it, and no lines of a diff with their signs.
copybutton_selector = "div:not(.highlight-diff) > div.highlight > pre"
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

# Docstrings: `name` is a link where the name has an entry.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
autosummary_generate = False
python_maximum_signature_line_length = 88

# The types of Python and PySpark link to their own documentation on request only: a build needs no network.
if os.environ.get("DOCS_INTERSPHINX") == "1":
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "pyspark": ("https://spark.apache.org/docs/latest/api/python", None),
    }
