"""Who holds what, written by compare-and-swap: stores, and the ledger that decides and commits on them."""
