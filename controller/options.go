package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// Options is everything that the controller is told, by flags.
type Options struct {
	// Namespace is where builds run and where secrets are looked for.
	Namespace string
	// AgentImage is the image of the agent, the one of this program.
	AgentImage string
	// BuildServiceAccount is the ServiceAccount of build pods. It needs no rights.
	BuildServiceAccount string
	// DefaultPullSecret is used where a MachineOSConfig names none.
	DefaultPullSecret string
	// Architecture is that of the nodes, in Go's spelling: it selects the
	// Containerfile and the nodes that build.
	Architecture string
	// Privilege is how much build pods may.
	Privilege Privilege
	// MaxRetries is how often the agent tries each operation.
	MaxRetries int
	// BuildPod has settings of build pods, which a MachineOSConfig may override.
	BuildPod BuildPod
}

// DefaultOptions are those of flags that are not given. The names are those that
// the Machine Config Operator uses.
func DefaultOptions() Options {
	return Options{ //nolint:gosec // these are names of secrets, and no secrets
		Namespace:           "openshift-machine-config-operator",
		BuildServiceAccount: "strata-build",
		DefaultPullSecret:   "global-pull-secret-copy",
		Architecture:        runtime.GOARCH,
		Privilege:           PrivilegeUserNamespace,
		MaxRetries:          3,
	}
}

// Validate reports what cannot be used.
func (o *Options) Validate() error {
	if o.AgentImage == "" {
		return fmt.Errorf("--agent-image is not set: name the image of the agent, with its registry")
	}
	if _, ok := securityOf[o.Privilege]; !ok {
		return fmt.Errorf("--build-privilege is %q: use one of %s", o.Privilege, strings.Join(privileges(), ", "))
	}
	if o.MaxRetries < 1 {
		return fmt.Errorf("--max-retries is %d: use 1 or more", o.MaxRetries)
	}
	return o.BuildPod.validate()
}

// BuildPod are the settings of build pods that no field of a MachineOSConfig is
// for. They are given as YAML or JSON, for all builds with --build-pod and for one
// config in its annotation strata.build/build-pod, which wins field by field.
type BuildPod struct {
	NodeSelector map[string]string           `json:"nodeSelector,omitempty"`
	Tolerations  []corev1.Toleration         `json:"tolerations,omitempty"`
	Resources    corev1.ResourceRequirements `json:"resources,omitempty"`
	// PriorityClassName is that of the pod.
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// DeadlineSeconds bounds the Job with all its pods. The default is four hours.
	DeadlineSeconds *int64 `json:"deadlineSeconds,omitempty"`
	// Labels and Annotations are added to the pod.
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// Storage limits the volume that holds the store.
	Storage *resource.Quantity `json:"storage,omitempty"`
	// Agent has further settings of the agent by the names of its flags, for
	// example cache-to.
	Agent map[string]string `json:"agent,omitempty"`
}

// defaultDeadline is generous: a build of an operating system takes minutes, and
// a registry that is slow some hours at most.
const defaultDeadline = int64(4 * 60 * 60)

// reserved are settings of the agent that the controller makes itself.
var reserved = []string{"tag", "push", "build-id", "storage-root", "result", "result-max", "containerfile", "max-retries", "pull-authfile", "push-authfile", "authfile"}

// flagName is what the agent's flags look like.
var flagName = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// ParseBuildPod reads settings and puts them over those of base, field by field. It
// is strict: a field that is unknown is an error.
func ParseBuildPod(text string, base BuildPod) (b BuildPod, err error) {
	if err := yaml.UnmarshalStrict([]byte(text), &b); err != nil {
		return b, err
	}
	fields, own := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	encoded, err := json.Marshal(base)
	if err := errors.Join(err, json.Unmarshal(encoded, &fields), yaml.Unmarshal([]byte(text), &own)); err != nil {
		return b, err
	}
	maps.Copy(fields, own)
	if encoded, err = json.Marshal(fields); err != nil {
		return b, err
	}
	b = BuildPod{}
	return b, errors.Join(json.Unmarshal(encoded, &b), b.validate())
}

func (b *BuildPod) validate() error {
	if b.DeadlineSeconds != nil && *b.DeadlineSeconds < 1 {
		return fmt.Errorf("deadlineSeconds is %d: use 1 or more", *b.DeadlineSeconds)
	}
	for name := range b.Labels {
		if strings.HasPrefix(name, prefix) || strings.HasPrefix(name, "strata.build/") {
			return fmt.Errorf("labels: %s is set by the controller", name)
		}
	}
	for name := range b.Agent {
		if slices.Contains(reserved, name) {
			return fmt.Errorf("agent: %s is set by the controller", name)
		}
		if !flagName.MatchString(name) {
			return fmt.Errorf("agent: %q is not the name of a flag of `agent build`, without dashes in front", name)
		}
	}
	return nil
}
