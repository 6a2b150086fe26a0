"""The ledger as people and programs read it: `bill` are its rows, the others write them."""

__all__ = ["bill", "chart", "compared", "table", "written"]
