"""Finds code that would make ranks diverge, before it runs. Files are only parsed, with `ast`.

`project` resolves names across files, `sides` finds the collectives on each side of a test, `rules`
decides which differences are findings, `linting` runs the rules and formats the output.
"""
