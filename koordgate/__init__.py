"""What the webhook and the reporter share: the command line, settings, log, back-off and the Kubernetes boundary."""
