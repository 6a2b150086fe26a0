"""How rules are asked: what one sees and returns (`contract`), in which order, and what for.

`blame` builds the finding that most rules make, `engine` asks them all and keeps what weighs most,
`who_ends` says who could end a wait, and `patience` what a finding is called by that and after so
much silence. The rules themselves are in
``causes``. One that lacks its evidence is skipped, and `engine` says so: none guesses.
"""

__all__ = ["blame", "contract", "engine", "who_ends"]
