"""The manual as a site: `make docs`. The source folder is the repository, so links work here as they do on GitHub."""

import re
import sys
import warnings
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT / "src"), str(DOCS / "_ext")]

from evenfed import __version__  # noqa: E402

project = "evenfed"
author = "The evenfed developers"
project_copyright = "The evenfed developers, Apache-2.0"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
    "sphinx_design",
    "commands",
    "docstrings",
]

# What is part of the site
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "examples/README.md",
    "examples/*/README.md",
    "results/README.md",
    "results/PLAN.md",
    "results/**/report.md",
    "results/**/choice.md",
]
suppress_warnings = ["config.cache"]
exclude_patterns = [
    ".*",
    "build",
    "dist",
    "runs",
    "src",
    "tests",
    "tools",
    "**/__pycache__",
    "docs/_ext",
    "docs/gallery/*.ipynb",
    "docs/gallery/*.py",
]
QUICK = tags.has("quick")  # noqa: F821  for the tests: without the long reports, and nothing is executed
if QUICK:
    include_patterns = [pattern for pattern in include_patterns if not pattern.startswith("results/**")]
    exclude_patterns += ["docs/reports.md", "docs/gallery"]
    suppress_warnings += ["myst.xref_missing", "toc.excluded", "toc.not_readable", "ref.doc"]
    extensions.remove("sphinx_gallery.gen_gallery")
source_suffix = {".rst": "restructuredtext", ".ipynb": "myst-nb", ".md": "myst-nb"}

# Markdown and notebooks
myst_enable_extensions = ["colon_fence", "attrs_inline", "attrs_block"]
myst_heading_anchors = 4
nb_execution_mode = "off" if QUICK else "cache"
nb_execution_cache_path = str(ROOT / "build" / "notebooks")
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_excludepatterns = ["*.md"]

# Docstrings
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False

# Executed examples; a script that has not changed is not run again
sphinx_gallery_conf = {
    "examples_dirs": ["examples/gallery"],
    "gallery_dirs": ["docs/gallery"],
    "filename_pattern": r"\.py$",
    "within_subsection_order": "gallery.order",
    "capture_repr": ("_repr_html_", "__repr__"),
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "copyfile_regex": r"$^",
    "abort_on_example_error": True,
    "doc_module": (),
    "backreferences_dir": None,
    "download_all_examples": False,
    "nested_sections": False,
    "image_srcset": ["2x"],
    "reset_modules": ("gallery.look",),
}
warnings.filterwarnings("ignore", message=".*oscillates.*")

# How it looks
html_theme = "furo"
html_title = "evenfed"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_extra"]
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#7fb2f0", "color-brand-content": "#7fb2f0"},
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def setup(app):  # type: ignore[no-untyped-def]
    """A link to a script of the gallery leads to its page."""

    def to_pages(app, name: str, source: list[str]) -> None:  # type: ignore[no-untyped-def]
        source[0] = re.sub(r"\]\(\.\./examples/gallery/(\w+)\.py\)", r"](gallery/\1.rst)", source[0])

    app.connect("source-read", to_pages)
