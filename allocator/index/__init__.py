"""The whole cluster in arrays: which nodes can hold a request, and which of them is best, without a look at each node.

Amounts travel packed (patent): one number a resource class and node. The only room of the core that uses
numpy.
"""
