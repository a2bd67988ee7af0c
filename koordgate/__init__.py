"""What both processes share around the core: settings, log, metrics, the Kubernetes boundary, the ledger, the CLI."""
