"""`koordgate adopt`: moves a cluster from another product to koordgate, namespace by namespace, and back."""
