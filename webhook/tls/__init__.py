"""Keys, certificates, and who may call."""
