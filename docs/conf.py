"""How Sphinx builds these pages; built with -W, so every warning is an error."""

from lightning_hangcheck.version import __version__

project = "lightning-hangcheck"
author = "The lightning-hangcheck developers"
project_copyright = "The lightning-hangcheck developers"
version = release = __version__
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"lightning-hangcheck {__version__}"
html_extra_path = ["verdict.schema.json", "examples/hangcheck-alerts.yml"]
