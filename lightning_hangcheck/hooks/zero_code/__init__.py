"""Records scripts that do not use this package; `start` decides what is watched, and when."""
