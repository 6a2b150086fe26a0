"""Will the ranks come: do the launcher, its variables, the address and the port agree?

`launch` reads the command and says what it starts; the checks compare that with the environment.
"""
