"""What we know that is not logic: data files that anybody can extend, and their loader."""
