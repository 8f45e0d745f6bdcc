package images

import (
	"errors"

	nettypes "go.podman.io/common/libnetwork/types"
)

// noNetwork stands in for netavark, which buildah looks for before it knows
// whether it will need it: steps use the network that this process has, so no
// network is ever made.
type noNetwork struct{}

var errNoNetwork = errors.New("steps use the network of the agent; no other one can be made")

var _ nettypes.ContainerNetwork = noNetwork{}

func (noNetwork) NetworkCreate(nettypes.Network, *nettypes.NetworkCreateOptions) (nettypes.Network, error) {
	return nettypes.Network{}, errNoNetwork
}

func (noNetwork) NetworkUpdate(string, nettypes.NetworkUpdateOptions) error { return errNoNetwork }

func (noNetwork) NetworkRemove(string) error { return errNoNetwork }

func (noNetwork) NetworkList(...nettypes.FilterFunc) ([]nettypes.Network, error) {
	return nil, errNoNetwork
}

func (noNetwork) NetworkInspect(string) (nettypes.Network, error) {
	return nettypes.Network{}, errNoNetwork
}

func (noNetwork) Setup(string, nettypes.SetupOptions) (map[string]nettypes.StatusBlock, error) {
	return nil, errNoNetwork
}

func (noNetwork) Teardown(string, nettypes.TeardownOptions) error { return errNoNetwork }

func (noNetwork) RunInRootlessNetns(func() error) error { return errNoNetwork }

func (noNetwork) RootlessNetnsInfo() (*nettypes.RootlessNetnsInfo, error) { return nil, errNoNetwork }

func (noNetwork) PestoSocketPath() string { return "" }

func (noNetwork) Drivers() []string { return nil }

func (noNetwork) DefaultNetworkName() string { return "host" }

func (noNetwork) NetworkInfo() nettypes.NetworkInfo { return nettypes.NetworkInfo{} }
