// Package apiserver runs a real Kubernetes API inside a test: etcd and
// kube-apiserver, and on request the controllers that act on Jobs, owners,
// namespaces and service accounts. There is no node, no kubelet and no
// scheduler: pods are made and deleted, and the test says what becomes of them
// by writing their status.
//
// The servers are started and given certificates by controller-runtime's
// envtest; the program is test/kube, which `make kube` compiles.
//
// A package starts it once, in TestMain:
//
//	var server *apiserver.Server
//
//	func TestMain(m *testing.M) {
//		os.Exit(apiserver.Main(m, &server, apiserver.Options{Controllers: true}))
//	}
//
// or one test has one for itself with Start. Tests that share a server keep
// apart by namespace, and by name where a kind has no namespace.
//
// The promises a test can rely on:
//
//   - Everything listens on loopback, on free ports.
//   - What New returns is ready: the API answers, the kinds of the CRDs are
//     served, and with Controllers the namespace default has its service account.
//   - Authorization is RBAC. Config is the administrator; to act as somebody else,
//     set Impersonate in a copy of it.
//   - Everything ends with Stop, and also when the test process is killed.
//
// Without Controllers nothing is deleted because its owner is gone, a deleted
// namespace stays Terminating, and pods need no service account.
package apiserver
