"""Records scripts that never heard of this package; `start` says what goes to work when."""
