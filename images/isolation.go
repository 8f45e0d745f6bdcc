package images

import (
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.podman.io/buildah/define"
	"go.podman.io/buildah/pkg/parse"
)

// isolation is how RUN steps are kept apart from the machine.
type isolation struct {
	name  string
	value define.Isolation
}

// parseIsolation understands what buildah understands. Empty is chroot, the one
// that needs no OCI runtime, no cgroup to write to and no other helper.
func parseIsolation(name string) (isolation, error) {
	if name == "" {
		name = define.IsolationChroot.String()
	}
	value, err := parse.IsolationOption(name)
	if err != nil {
		return isolation{}, invalid("--isolation", fmt.Errorf("%q is not one of chroot, oci and rootless", name))
	}
	return isolation{name: value.String(), value: value}, nil
}

// namespaces returns what a step needs beside the defaults: the network that the
// agent has, since no other one is ever made.
func (isolation) namespaces() define.NamespaceOptions {
	return define.NamespaceOptions{{Name: string(specs.NetworkNamespace), Host: true}}
}
