package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/strata-build/strata/images"
)

// Where the build pod of the Machine Config Operator has its inputs, and what the
// agent takes from there when nothing else is said: flags win, then the environment.
const (
	podContainerfile  = "/tmp/containerfile/Containerfile"
	podMachineConfig  = "/tmp/machineconfig/machineconfig.json.gz"
	podTrustBundle    = "/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt"
	podServiceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"
	podDone           = "/tmp/done"
	// podStore is below HOME. Its volume is for the user whom the operator's script
	// becomes; the agent stays root, whose store is at podOwnStore by default.
	podStore    = ".local/share/containers"
	podOwnStore = "/var/lib/containers"
)

// podMounts are directories that RUN steps see. Where a variable names one, it is
// also where steps see it.
var podMounts = []struct{ variable, source, target, what string }{
	{variable: "ETC_PKI_ENTITLEMENT_MOUNTPOINT", what: "entitlement certificates"},
	{variable: "ETC_YUM_REPOS_D_MOUNTPOINT", what: "package repositories"},
	{variable: "ETC_PKI_RPM_GPG_MOUNTPOINT", what: "keys of packages"},
	{source: "/var/run/secrets/rhsm", target: "/run/secrets/rhsm", what: "subscription manager's configuration"},
}

// Pod is what a build pod mounts that is no flag.
type Pod struct {
	// Context tells that the build context is assembled from the other fields.
	Context bool
	// MachineConfig are the file with the MachineConfig, or its parts in order; none
	// when there is no MachineConfig.
	MachineConfig []string
	// TrustBundle is the cluster's bundle of authorities, empty for none.
	TrustBundle string
	// Mounts are what RUN steps see.
	Mounts []PodMount
	// Remarks are sentences about what is there and of no use.
	Remarks []string
}

// PodMount is a directory that RUN steps see a copy of.
type PodMount struct{ Source, Target, What string }

// readPod takes from the files of a build pod what flags and environment leave open.
// args are the arguments that are no flags; root is the directory in which the pod's
// paths are looked for, empty outside of tests.
func (s *Settings) readPod(args, environ []string, root string, problems *Problems) {
	at := func(path string) string { return filepath.Join(root, path) }
	found, err := machineConfigFiles(at(podMachineConfig))
	if err != nil {
		problems.add("the MachineConfig cannot be read: %w", err)
	}
	if len(args) == 0 && (exists(at(podContainerfile)) || len(found) > 0) {
		s.Pod.Context, s.Pod.MachineConfig = true, found
		if s.Containerfile == "" { // that it is not there is said where all files are looked at
			s.Containerfile = at(podContainerfile)
		}
	}
	if exists(at(podTrustBundle)) {
		s.Pod.TrustBundle = at(podTrustBundle)
		s.Authorities = append(s.Authorities, s.Pod.TrustBundle)
	}
	for _, name := range []string{"ca.crt", "service-ca.crt"} {
		if path := filepath.Join(at(podServiceAccount), name); exists(path) {
			s.Authorities = append(s.Authorities, path)
		}
	}
	for _, m := range podMounts {
		source, target := at(m.source), m.target
		if m.variable != "" {
			target = variable(environ, m.variable)
			source = at(target)
		}
		switch info, err := os.Stat(source); {
		case target == "" || m.variable == "" && os.IsNotExist(err):
			continue
		case m.variable == "" && (err != nil || !info.IsDir()):
			s.Pod.Remarks = append(s.Pod.Remarks, fmt.Sprintf("%s is not a directory that can be read: steps get no %s", m.source, m.what))
		case err != nil || !info.IsDir() || !filepath.IsAbs(target):
			s.Pod.Remarks = append(s.Pod.Remarks, fmt.Sprintf("%s is %q, which is not the absolute path of a directory here: steps get no %s", m.variable, target, m.what))
		default:
			s.Pod.Mounts = append(s.Pod.Mounts, PodMount{Source: source, Target: filepath.Clean(target), What: m.what})
		}
	}
	// TAG asks for a push, unless it was overruled.
	if s.origin["tag"] == "TAG" && s.Output == "" && !s.flags.Changed("push") {
		s.Push = true
	}
	if info, err := os.Stat(at(podDone)); err == nil && info.IsDir() && s.Push && s.DigestFile == "" {
		s.DigestFile = filepath.Join(at(podDone), "digestfile")
	}
}

// readStore takes for the store the volume that a build pod mounts for it, where nothing
// else is said: what a container writes beside its volumes carries no overlay.
func (s *Settings) readStore(environ []string, root string) {
	at := func(path string) string { return filepath.Join(root, path) }
	home := variable(environ, "HOME")
	if s.StorageRoot != "" || home == "" || !exists(at(podContainerfile)) || images.IsMountpoint(at(podOwnStore)) {
		return
	}
	if dir := at(filepath.Join(home, podStore)); images.IsMountpoint(dir) {
		s.StorageRoot = filepath.Join(dir, "storage")
	}
}

// variable is the value of a variable of the environment, empty when it has none.
func variable(environ []string, name string) string {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// machineConfigFiles returns the file at path or, where that is not there, its parts:
// files of the same name with a number behind it, as in machineconfig.json.gz.1.
func machineConfigFiles(path string) ([]string, error) {
	if exists(path) {
		return []string{path}, nil
	}
	found, err := filepath.Glob(path + ".*")
	if err != nil {
		return nil, err
	}
	number := func(part string) int {
		n, err := strconv.Atoi(strings.TrimPrefix(part, path+"."))
		if err != nil {
			return -1
		}
		return n
	}
	found = slices.DeleteFunc(found, func(part string) bool { return number(part) < 0 })
	sort.Slice(found, func(i, j int) bool { return number(found[i]) < number(found[j]) })
	for i, part := range found {
		if n := number(part) - number(found[0]); n != i {
			return nil, fmt.Errorf("the part before %s is not there", part)
		}
	}
	if len(found) > 0 && number(found[0]) > 1 {
		return nil, fmt.Errorf("the part before %s is not there", found[0])
	}
	return found, nil
}
