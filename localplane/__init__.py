"""A real Kubernetes on loopback for the playground, the tests and the benchmarks.

Real etcd, kube-apiserver, kube-scheduler and kube-controller-manager, linked from Go modules into one binary
(`module/`), started on free ports of 127.0.0.1. Everything that they write is in one folder. A test that passes here
passes on Kubernetes itself.

Modules: `binaries` finds or builds the programs, `plane` runs the control plane, `admin` talks to it, `chart` renders
and installs the Helm chart, `balancer` and `replicas` run several webhook processes behind one address, `playground` is
all of it with tenants.
"""
