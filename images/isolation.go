package images

import (
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.podman.io/buildah/define"
	"go.podman.io/buildah/pkg/parse"
	"go.podman.io/buildah/util"

	"github.com/strata-build/strata/agent/result"
)

// isolation is how RUN steps are kept apart from the machine.
type isolation struct {
	name  string
	value define.Isolation
}

// lookAtIsolation chooses how RUN steps are isolated.
func (e *Engine) lookAtIsolation() (Finding, error) {
	var err error
	if e.isolation, err = parseIsolation(e.config.Isolation); err != nil {
		return Finding{}, err
	}
	if e.isolation.value == define.IsolationChroot {
		return ok("chroot, with the network of the agent"), nil
	}
	name := util.Runtime()
	path := util.FindLocalRuntime(name)
	if path == "" {
		path = lookPath(name)
	}
	if path == "" {
		return failure(result.ReasonSettingsInvalid, "--isolation %s needs an OCI runtime, and %s is not installed", e.isolation.name, name).
			hinted("install %s, or use --isolation chroot, which needs none", name), nil
	}
	return ok("%s by %s, with the network of the agent", e.isolation.name, path), nil
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
