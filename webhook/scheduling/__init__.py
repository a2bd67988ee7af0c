"""Where a Pod may go and what it gets there: the extender, and the Binding."""
