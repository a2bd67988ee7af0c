"""The soak: what is bound, what is done to the cluster meanwhile, and the auditor that reads only Pods."""
