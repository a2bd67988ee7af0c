"""The Deployment: admission, binding, extender, and the same code offline."""
