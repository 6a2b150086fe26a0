"""The ledger as people and programs read it: `bill` are its rows, the others write them."""
