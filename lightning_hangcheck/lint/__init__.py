"""Finds in source code what would part the ranks, before it runs. Only Python's `ast` reads it.

`project` knows what names mean over all files, `sides` what each side of a test reaches, `rules`
what of that is wrong, `linting` goes through the files and shows what was found.
"""
