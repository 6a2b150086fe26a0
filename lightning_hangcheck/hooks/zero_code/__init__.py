"""Records scripts that never heard of this package.

`start` begins it in each rank; `imports` says which function of this room goes to work when which
module of a framework is imported; those functions wrap the framework's calls in sections.
"""
