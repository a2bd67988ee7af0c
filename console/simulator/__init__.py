"""The offline commands: the webhook's own code on the in-memory store, fed from files instead of a cluster.

Commands: `simulate` (with `simulation`, `compare`, `variants`, `tracerun`), `translate`, `demo`. Input: `objects` reads
files, `shapes` checks them as an API server would, `inputs` makes of them what a cluster has, with devices that are
`assumed`; `workloads` (with `owners`, `templates`, `daemons`) creates Pods, `arrivals` lets them come. The cluster:
`cluster` stands in for the API server (with `apiserver` and `apiplugins`) and for kube-scheduler (with `scheduler`,
`predicates` and `resources`); `api` calls the webhook in process or over HTTPS; `controlplane` is a real cluster
instead. Output: `account` counts who holds what; `words`, `report` and `devicemap` show it, `expectations` judges it.
"""
