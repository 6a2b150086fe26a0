"""The vocabulary: slugs of the contract, and what names of files and functions say.

`slugs` are the public ones, `phase_words` tells a phase by the words of a name, `code_owner` whose
code a file is by its path.
"""
