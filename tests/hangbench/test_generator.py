"""Programs with faults are made as their seeds say."""

from __future__ import annotations

import re

from corpus.generator.drawing import draw_programs

DRAWN = draw_programs(11, 240, "both")


def test_the_same_seed_gives_the_same_programs_and_another_gives_others() -> None:
    again, other = draw_programs(11, 240, "both"), draw_programs(12, 240, "both")
    assert again == DRAWN
    assert {one.source for one in other}.isdisjoint(one.source for one in DRAWN)


def test_every_composed_program_is_complete() -> None:
    for program in DRAWN:
        compile(program.source, program.name, "exec")
        assert not re.search(r"\$\w", program.source), program.name
        assert "hangcheck" not in program.source, program.name
