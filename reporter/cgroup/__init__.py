"""The cpuset of every container made what was decided: where it is, what it should be, in which order, and kept so."""
