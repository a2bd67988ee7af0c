"""The offline faces: the webhook's own code on the in-memory store, fed from files instead of a cluster."""
