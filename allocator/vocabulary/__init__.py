"""The words that everything else is said in: devices, CPUs, asks, holdings. Values only; nothing here decides."""
