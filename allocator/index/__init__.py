"""The whole cluster in arrays: which nodes can hold a request, and which is best, without a look at each node.

Amounts are passed packed (patent): one number per resource class and node. This is the only package of the core that
uses numpy.
"""
