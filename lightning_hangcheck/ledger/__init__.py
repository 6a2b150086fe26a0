"""Records what ran, how long, at what cost, and what a restart would discard."""
