"""`hangcheck rehearse`: the user's command on a few CPU ranks, one scene after the other.

`launching` turns the command into one for CPU ranks, `scenes` says which scenes there are and what
each needs, `runner` plays them, `text` writes down what came of it. The half inside a rank is
`hooks.rehearsal`.
"""
