"""The values that everything else is expressed in: devices, CPUs, asks, holdings. Nothing here decides."""
