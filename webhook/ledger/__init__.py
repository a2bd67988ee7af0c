"""Who holds what, written by compare-and-swap: the ledger that decides and commits, and the stores under it."""
