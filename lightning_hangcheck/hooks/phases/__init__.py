"""What a script does in turn, kept in the ledger: `phase` is what it calls."""
