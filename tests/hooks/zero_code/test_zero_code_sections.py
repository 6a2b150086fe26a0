"""Which watched calls are said: the first of a kind, the outermost, not what the script says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hooks.launching import as_rank, run_script

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import framework
from lightning_hangcheck import section
from lightning_hangcheck.hooks.zero_code.wrapping import in_section, unwrap, wrap

for name in ("outer", "inner"):
    wrap(framework, name, in_section("call", name, then=lambda call: print(call.result)))
framework.outer()
framework.inner()
with section("inner"):
    framework.inner()
for _ in range(3):
    framework.inner()
try:
    framework.outer(fail=True)
except ValueError:
    pass
unwrap(framework, "inner")
framework.inner()
"""
FRAMEWORK = """
def inner():
    return "in"

def outer(fail=False):
    if fail:
        raise ValueError
    return "out" + inner()
"""


def test_the_first_outermost_calls_are_said_unless_the_script_says_them(tmp_path: Path) -> None:
    (tmp_path / "framework.py").write_text(FRAMEWORK)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    code, output, errors = run_script(script, *as_rank(tmp_path))
    assert (code, output.split()) == (0, ["outin", "in", "in", "in", "in", "in"])
    assert re.findall(r"About to call (\w+)", errors) == ["outer", "inner", "inner", "inner"]
    assert len(re.findall(r"returned", errors)) == 4
