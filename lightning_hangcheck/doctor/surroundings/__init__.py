"""What the environment of the ranks brings along: variables, caches, servers, versions."""
