"""How processes become ranks, which groups they make, and what they call there."""
