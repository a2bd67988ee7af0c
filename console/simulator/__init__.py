"""The offline commands: the webhook's own code on the in-memory store, fed from files instead of a cluster.

Commands: `simulate` (with `compare`), `translate`, `demo`. Input: `documents` reads files, `manifests` checks objects
as an API server would, `objects` sorts them, with devices that are `assumed`; `workloads` creates Pods, `arrivals` lets
them come. The cluster: `cluster` stands in for the API server (with `apiserver`) and for kube-scheduler (with
`scheduler`); `running` reads what other products gave, `api` calls the webhook in process or over HTTPS. Output:
`account` counts who holds what; `words`, `report` and `devicemap` show it, `expectations` judges it.
"""
