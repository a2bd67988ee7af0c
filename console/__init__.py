"""The commands for people: what they read of a cluster or of files, and what they print. No server imports them."""
