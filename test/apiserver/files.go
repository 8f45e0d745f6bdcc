package apiserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// BinaryVariable names the environment variable with the path of test/kube.
// Without it, bin/kube of this module is used, where `make kube` puts it.
const BinaryVariable = "KUBE_BINARY"

// Binary returns the path of test/kube, or an error that says how to make it.
func Binary() (string, error) {
	path := os.Getenv(BinaryVariable)
	if path == "" {
		root, err := moduleDir("github.com/strata-build/strata")
		if err != nil {
			return "", err
		}
		path = filepath.Join(root, "bin", "kube")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("there is no Kubernetes to test with: %w: run `make kube`, or set %s to what it built", err, BinaryVariable)
	}
	return filepath.Abs(path)
}

// MachineConfigurationCRDs returns the files with the definitions of
// MachineOSConfig, MachineOSBuild, MachineConfig and MachineConfigPool, as
// github.com/openshift/api has them for a cluster that runs its own control plane.
func MachineConfigurationCRDs() ([]string, error) {
	root, err := moduleDir("github.com/openshift/api")
	if err != nil {
		return nil, err
	}
	var files []string
	for _, kind := range []string{"machineosconfigs", "machineosbuilds", "machineconfigs", "machineconfigpools-SelfManagedHA"} {
		files = append(files, filepath.Join(root, "machineconfiguration/v1/zz_generated.crd-manifests",
			"0000_80_machine-config_01_"+kind+".crd.yaml"))
	}
	return files, nil
}

// moduleDir returns the folder with the source of a module.
func moduleDir(module string) (string, error) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list -m %s: %w", module, err)
	}
	dir := strings.TrimSpace(string(out))
	if dir == "" {
		return "", fmt.Errorf("the source of %s is not here: run `go mod download %s`", module, module)
	}
	return dir, nil
}
