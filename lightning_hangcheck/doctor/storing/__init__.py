"""Where checkpoints go: are they there, can more be written and how fast, are remotes complete?"""
