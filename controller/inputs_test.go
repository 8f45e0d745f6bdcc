package controller

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
)

func testInputs(changes ...func(*inputs)) *inputs {
	config := testConfig()
	in := &inputs{
		build: newBuild(config, now1, "rendered-worker-1", nil), config: config, machineConfig: &mcfgv1.MachineConfig{},
		push: credentials{"push", corev1.DockerConfigJsonKey}, pull: credentials{"pull", corev1.DockerConfigKey},
	}
	in.build.UID = "b"
	in.machineConfig.Name = "rendered-worker-1"
	in.machineConfig.Spec.OSImageURL = "registry.example/base@" + testDigest
	for _, change := range changes {
		change(in)
	}
	return in
}

func testOptions() *Options {
	o := DefaultOptions()
	o.AgentImage = "registry.example/strata:1"
	return &o
}

// TestMachineConfigThatDoesNotFit is the end of case K09: a condition, and no Job.
func TestMachineConfigThatDoesNotFit(t *testing.T) {
	content := make([]byte, 6<<20)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(content) // never fails
	in := testInputs(func(in *inputs) {
		in.machineConfig.Spec.Config.Raw = fmt.Appendf(nil, "%q", fmt.Sprintf("%x", content))
	})
	_, err := in.render(testOptions())
	var why *problem
	if !errors.As(err, &why) || why.reason != reasonMachineConfigLarge || !strings.Contains(why.message, "rendered-worker-1") || !strings.Contains(why.message, "bytes") {
		t.Errorf("%v", err)
	}
}

func TestFilesOfTheNodes(t *testing.T) {
	in := testInputs(func(in *inputs) {
		in.cluster = &mcfgv1.ControllerConfig{}
		in.cluster.Spec.AdditionalTrustBundle = []byte("-----BEGIN CERTIFICATE-----")
		in.cluster.Spec.Proxy = &configv1.ProxyStatus{HTTPProxy: "http://proxy.example:3128", NoProxy: ".cluster.local"}
		in.machineConfig.Spec.Config.Raw = []byte(`{"storage":{"files":[
			{"path":"/etc/containers/policy.json","contents":{"source":"data:,p"}},
			{"path":"/etc/containers/registries.d/a.yaml","contents":{"source":"data:,a"}},
			{"path":"/etc/containers/registries.conf","contents":{"source":"data:,r"}},
			{"path":"/etc/containers/registries.conf.d/01-b.conf","contents":{"source":"data:,b"}},
			{"path":"/etc/containers/storage.conf","contents":{"source":"data:,s"}}]}}`)
	})
	f, err := in.render(testOptions())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, source := range f.registries {
		for _, item := range source.ConfigMap.Items {
			for _, m := range f.configMaps {
				if m.Name == source.ConfigMap.Name {
					seen[item.Path] = string(m.BinaryData[item.Key])
				}
			}
		}
	}
	if want := "map[policy.json:p registries.conf:r registries.conf.d/01-b.conf:b registries.d/a.yaml:a]"; fmt.Sprint(seen) != want {
		t.Errorf("the pod sees %v, want %s", seen, want)
	}
	job := in.job(testOptions(), f)
	env := fmt.Sprint(job.Spec.Template.Spec.Containers[0].Env)
	for _, text := range []string{"HTTP_PROXY http://proxy.example:3128", "NO_PROXY .cluster.local"} {
		if !strings.Contains(env, text) {
			t.Errorf("no %s in %s", text, env)
		}
	}
	if strings.Contains(env, "HTTPS_PROXY") {
		t.Errorf("a proxy that is not there: %s", env)
	}
	mounted := map[string]bool{}
	for _, m := range job.Spec.Template.Spec.Containers[0].VolumeMounts {
		mounted[m.MountPath] = true
	}
	if !mounted["/etc/pki/ca-trust/source/anchors"] || !mounted["/etc/containers"] {
		t.Errorf("mounts %v", mounted)
	}
	names := map[string]bool{}
	for _, m := range f.configMaps {
		names[m.Name] = true
	}
	for _, want := range []string{"containerfile-", "mc-", "additionaltrustbundle-", "etc-policy-", "etc-registries-"} {
		if !names[want+now1] {
			t.Errorf("no %s%s among %v", want, now1, names)
		}
	}
}

func TestBuildPodSettings(t *testing.T) {
	base, err := ParseBuildPod("nodeSelector: {a: b}\npriorityClassName: high\nresources: {limits: {memory: 1Gi}}", BuildPod{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseBuildPod(`{"nodeSelector": {"c": "d"}, "deadlineSeconds": 60}`, base)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got.NodeSelector) != "map[c:d]" || got.PriorityClassName != "high" || *got.DeadlineSeconds != 60 || got.Resources.Limits.Memory().String() != "1Gi" {
		t.Errorf("%+v", got)
	}
	for text, says := range map[string]string{
		"nodeSelektor: {a: b}":         "nodeSelektor",
		"deadlineSeconds: 0":           "deadlineSeconds",
		"deadlineSeconds: tomorrow":    "deadlineSeconds",
		"agent: {tag: x}":              "tag",
		"agent: {'--cache-to': x}":     "--cache-to",
		"labels: {strata.build/a: b}":  "strata.build/a",
		"tolerations: {key: x}":        "tolerations",
		"resources: {limits: {m: 1q}}": "",
	} {
		if _, err := ParseBuildPod(text, base); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestPrivileges(t *testing.T) {
	for _, tt := range []struct {
		mode       Privilege
		own        bool // user namespace
		privileged bool
		seccomp    corev1.SeccompProfileType
		add        int
	}{
		{PrivilegeUserNamespace, true, false, corev1.SeccompProfileTypeRuntimeDefault, 13},
		{PrivilegeNested, true, false, corev1.SeccompProfileTypeUnconfined, 3},
		{PrivilegeHost, false, false, corev1.SeccompProfileTypeRuntimeDefault, 13},
		{PrivilegePrivileged, false, true, "", 0},
	} {
		o := testOptions()
		o.Privilege = tt.mode
		if err := o.Validate(); err != nil {
			t.Error(err)
		}
		spec := testInputs().job(o, &files{}).Spec.Template.Spec
		s := spec.Containers[0].SecurityContext
		if (spec.HostUsers != nil && !*spec.HostUsers) != tt.own || (s.Privileged != nil && *s.Privileged) != tt.privileged || *s.RunAsUser != 0 {
			t.Errorf("%s: %+v", tt.mode, s)
		}
		if tt.seccomp != "" && (s.SeccompProfile.Type != tt.seccomp || len(s.Capabilities.Add) != tt.add || s.Capabilities.Drop[0] != "ALL") {
			t.Errorf("%s: %+v", tt.mode, s)
		}
	}
	o := testOptions()
	o.Privilege = "root"
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "host, nested, privileged, userns") {
		t.Errorf("an unknown mode: %v", err)
	}
}
