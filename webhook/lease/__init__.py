"""The health lease: what ready replicas renew, and the keeper that opens entries of webhooks while nobody does."""
