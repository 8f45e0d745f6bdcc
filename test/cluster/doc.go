// Package cluster tests the product on a real cluster: etcd, API server,
// controllers, scheduler, kubelet, containerd and runc, with a registry that asks
// for TLS and a password. `make e2e` starts one for the tests; README.md in this
// folder says what it is made of.
package cluster
