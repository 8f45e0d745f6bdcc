package controller

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestMissingInputsHeal: what is missing or malformed is named, no Job is made, and
// the build goes on when it is there. Case K11 is among these.
func TestMissingInputsHeal(t *testing.T) {
	t.Parallel()
	own := func(w *world) string { return "own-" + w.name }
	pushSecret := func(w *world) {
		config := w.config()
		config.Spec.RenderedImagePushSecret.Name = own(w)
		w.must(admin.Update(w.ctx(), config))
	}
	replace := func(w *world, kind corev1.SecretType, data map[string][]byte) {
		_ = admin.Delete(w.ctx(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: own(w)}})
		w.must(admin.Create(w.ctx(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: own(w)}, Type: kind, Data: data}))
	}
	good := func(w *world) { replace(w, corev1.SecretTypeDockerConfigJson, dockerConfig("").Data) }
	for _, tt := range []struct {
		name, reason string
		broken, heal func(*world)
		says         func(*world) []string
		noBuild      bool // the config alone can say it
	}{
		{
			"push secret missing", "SecretMissing", pushSecret, good,
			func(w *world) []string { return []string{own(w), "renderedImagePushSecret", namespace} }, false,
		},
		{
			"pull secret missing", "SecretMissing",
			func(w *world) {
				config := w.config()
				config.Spec.BaseImagePullSecret.Name = own(w)
				w.must(admin.Update(w.ctx(), config))
			}, good,
			func(w *world) []string { return []string{own(w), "baseImagePullSecret", namespace} }, false,
		},
		{
			"push secret with another key", "SecretInvalid",
			func(w *world) {
				replace(w, corev1.SecretTypeOpaque, map[string][]byte{"config.json": []byte(`{"auths":{"x":{}}}`)})
				pushSecret(w)
			}, good,
			func(w *world) []string { return []string{own(w), ".dockerconfigjson", ".dockercfg"} }, false,
		},
		{
			"push secret that is no JSON of that form", "SecretInvalid",
			func(w *world) {
				replace(w, corev1.SecretTypeOpaque, map[string][]byte{".dockerconfigjson": []byte(`{"auths":"hunter2"}`)})
				pushSecret(w)
			},
			// A secret of the old form is as good.
			func(w *world) {
				replace(w, corev1.SecretTypeDockercfg, map[string][]byte{".dockercfg": []byte(`{"registry.example:5000":{"auth":"dXNlcjpwYXNz"}}`)})
			},
			func(w *world) []string { return []string{own(w), ".dockerconfigjson", "malformed"} }, false,
		},
		{
			"push secret without an entry", "SecretInvalid",
			func(w *world) {
				replace(w, corev1.SecretTypeDockerConfigJson, map[string][]byte{".dockerconfigjson": []byte(`{"auths":{}}`)})
				pushSecret(w)
			}, good,
			func(w *world) []string { return []string{own(w), "no entry"} }, false,
		},
		{
			"MachineConfig missing", "MachineConfigMissing",
			func(w *world) { w.point(w.rendered(7)) },
			func(w *world) { w.createMachineConfig(w.rendered(7)) },
			func(w *world) []string { return []string{w.rendered(7)} }, false,
		},
		{
			"MachineConfig with an unknown extension", "MachineConfigInvalid",
			func(w *world) {
				w.createMachineConfig(w.rendered(2), func(m *mcfgv1.MachineConfig) { m.Spec.Extensions = []string{"sauna"} })
				w.point(w.rendered(2))
			},
			func(w *world) { w.render(3) },
			func(w *world) []string { return []string{w.rendered(2), "sauna"} }, false,
		},
		{
			"settings of the build pod with an unknown field", "BuildPodSettingsInvalid",
			func(w *world) { w.annotate("strata.build/build-pod", ptr.To("nodeSelectr: {a: b}")) },
			func(w *world) { w.annotate("strata.build/build-pod", ptr.To("nodeSelector: {a: b}")) },
			func(*world) []string { return []string{"strata.build/build-pod", "nodeSelectr"} }, false,
		},
		{
			"settings of the build pod that the API refuses", "ObjectRefused",
			func(w *world) { w.annotate("strata.build/build-pod", ptr.To("nodeSelector: {'no key!': b}")) },
			func(w *world) { w.annotate("strata.build/build-pod", nil) },
			func(*world) []string { return []string{"Job build-", "no key!"} }, false,
		},
		{
			"pool missing", "PoolMissing",
			func(w *world) { w.must(admin.Delete(w.ctx(), w.pool())) },
			func(w *world) {
				pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: w.name}}
				pool.Spec.Configuration.Name = w.rendered(1)
				w.must(admin.Create(w.ctx(), pool))
			},
			func(w *world) []string { return []string{"MachineConfigPool " + w.name} }, true,
		},
		{
			"pool with a name of a MachineConfig that the API refuses in a build", "ObjectRefused", func(w *world) { w.point("short") }, func(w *world) { w.point(w.rendered(1)) },
			func(*world) []string { return []string{"MachineOSBuild", "machineConfig.name"} }, true,
		},
		{
			"pool not rendered", "PoolNotRendered", func(w *world) { w.point("") }, func(w *world) { w.point(w.rendered(1)) },
			func(w *world) []string { return []string{"MachineConfigPool " + w.name, "spec.configuration.name"} }, true,
		},
		{
			"push spec whose digest the API would refuse", "PushSpecUnsupported",
			func(w *world) { w.pushTo("registry.example:5000/a/b/c:latest") }, func(w *world) { w.pushTo("registry.example:5000/a/c:latest") },
			func(*world) []string { return []string{"registry.example:5000/a/b/c:latest", "namespace"} }, true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.broken(w)
			w.drive = newReconciler(t, server.Config)
			w.until("the config says what is wrong", func() bool {
				c := meta.FindStatusCondition(w.config().Status.Conditions, "ImageReady")
				return c != nil && c.Reason == tt.reason
			})
			w.settle()
			messages := []string{meta.FindStatusCondition(w.config().Status.Conditions, "ImageReady").Message}
			if !tt.noBuild {
				c := condition(w.build(), mcfgv1.MachineOSBuildPrepared)
				if c.Status != metav1.ConditionFalse || c.Reason != tt.reason {
					t.Errorf("Prepared is %s, %s", c.Status, c.Reason)
				}
				messages = append(messages, c.Message)
			} else if len(w.builds()) > 0 {
				t.Error("there is a build")
			}
			for _, m := range messages {
				for _, text := range tt.says(w) {
					if !strings.Contains(m, text) {
						t.Errorf("%q does not say %q", m, text)
					}
				}
				if strings.Contains(m, "hunter2") || strings.Contains(m, "dXNlcjpwYXNz") {
					t.Errorf("%q shows what is in the secret", m)
				}
			}
			if len(w.jobs())+len(w.pods()) > 0 {
				t.Error("there is a Job")
			}
			tt.heal(w)
			w.until("a Job", func() bool { return len(w.jobs()) == 1 })
			w.settle()
			w.consistent()
		})
	}
}

func (w *world) pushTo(spec string) {
	w.Helper()
	config := w.config()
	config.Spec.RenderedImagePushSpec = mcfgv1.ImageTagFormat(spec)
	w.must(admin.Update(w.ctx(), config))
}

// TestLargeMachineConfig: one that fits into no ConfigMap is in several.
func TestLargeMachineConfig(t *testing.T) {
	t.Parallel()
	w := newPool(t)
	content := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(content) // never fails
	w.createMachineConfig(w.rendered(2), func(m *mcfgv1.MachineConfig) {
		m.Spec.Config.Raw = fmt.Appendf(nil, `{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/big","contents":{"source":"data:;base64,%s"}}]}}`, base64.StdEncoding.EncodeToString(content))
	})
	w.point(w.rendered(2))
	w.createConfig()
	w.drive = newReconciler(t, server.Config)
	w.until("a Job", func() bool { return len(w.jobs()) == 1 })
	w.settle()
	w.consistent()
	var parts []string
	for _, m := range w.configMaps() {
		if strings.HasPrefix(m.Name, "mc-") {
			for key := range m.BinaryData {
				parts = append(parts, key)
			}
		}
	}
	slices.Sort(parts)
	if fmt.Sprint(parts) != "[machineconfig.json.gz.0 machineconfig.json.gz.1]" {
		t.Errorf("parts %v", parts)
	}
	for _, v := range w.jobs()[0].Spec.Template.Spec.Volumes {
		if v.Name == "machineconfig" && len(v.Projected.Sources) != 2 {
			t.Errorf("the pod sees %+v", v.Projected.Sources)
		}
	}
}

// TestBuildPod is the contract of the build pod.
func TestBuildPod(t *testing.T) {
	t.Parallel()
	w := newPool(t)
	entitlement := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "etc-pki-entitlement-" + w.name}, StringData: map[string]string{"entitlement.pem": "x"}}
	w.must(admin.Create(w.ctx(), entitlement))
	w.createConfig(func(c *mcfgv1.MachineOSConfig) {
		c.Annotations = map[string]string{"strata.build/build-pod": `
nodeSelector: {kubernetes.io/arch: arm64, pool: build}
tolerations: [{key: build, operator: Exists}]
resources: {requests: {memory: 2Gi}, limits: {memory: 4Gi}}
deadlineSeconds: 600
labels: {team: os}
storage: 30Gi
agent: {cache-to: registry.example:5000/os/cache}
`}
		c.Spec.Containerfile = []mcfgv1.MachineOSContainerfile{
			{ContainerfileArch: mcfgv1.NoArch, Content: "FROM configs AS final\nRUN any\n"},
			{ContainerfileArch: mcfgv1.Arm64, Content: "FROM configs AS final\nRUN arm\n"},
		}
	})
	w.drive = newReconciler(t, server.Config)
	w.until("a Job", func() bool { return len(w.jobs()) == 1 })
	job, b := w.jobs()[0], w.build()
	spec := job.Spec.Template.Spec
	c := spec.Containers[0]
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	for name, want := range map[string]string{
		"TAG":                            "registry.example:5000/os/layered:" + b.Name,
		"BASE_IMAGE_PULL_CREDS":          "/tmp/base-image-pull-creds/config.json",
		"FINAL_IMAGE_PUSH_CREDS":         "/tmp/final-image-push-creds/config.json",
		"MAX_RETRIES":                    "3",
		"STRATA_BUILD_ID":                string(b.UID),
		"STRATA_STORAGE_ROOT":            "/var/lib/containers/storage",
		"TMPDIR":                         "/var/lib/containers/tmp",
		"ETC_PKI_ENTITLEMENT_MOUNTPOINT": "/etc/pki/entitlement",
		"STRATA_CACHE_TO":                "registry.example:5000/os/cache",
	} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	if _, there := env["ETC_YUM_REPOS_D_MOUNTPOINT"]; there {
		t.Error("a mount point is named that nothing is mounted on")
	}
	paths := map[string]string{}
	for _, m := range c.VolumeMounts {
		paths[m.MountPath] = m.Name
		if m.SubPath != "" || m.ReadOnly == (m.Name == "store") {
			t.Errorf("mount %+v", m)
		}
	}
	volumes := map[string]corev1.Volume{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = v
	}
	for path, secret := range map[string]string{"/tmp/final-image-push-creds": "push", "/tmp/base-image-pull-creds": "pull", "/etc/pki/entitlement": entitlement.Name} {
		if v := volumes[paths[path]]; v.Secret == nil || v.Secret.SecretName != secret {
			t.Errorf("%s is %+v, want the secret %s itself", path, v, secret)
		}
	}
	if v := volumes[paths["/tmp/final-image-push-creds"]]; v.Secret.Items[0] != (corev1.KeyToPath{Key: ".dockerconfigjson", Path: "config.json"}) {
		t.Errorf("the push secret is seen as %+v", v.Secret.Items)
	}
	if v := volumes[paths["/var/lib/containers"]]; v.EmptyDir == nil || v.EmptyDir.SizeLimit.String() != "30Gi" {
		t.Errorf("the store is on %+v", v)
	}
	if volumes[paths["/etc/containers"]].Projected == nil || paths["/tmp/containerfile"] == "" || paths["/tmp/machineconfig"] == "" {
		t.Errorf("mounts %v", paths)
	}
	if *spec.HostUsers || *spec.AutomountServiceAccountToken || spec.ServiceAccountName != "strata-build" || spec.RestartPolicy != corev1.RestartPolicyNever || *spec.TerminationGracePeriodSeconds != 30 {
		t.Errorf("pod %+v", spec)
	}
	if s := c.SecurityContext; s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || s.Capabilities.Drop[0] != "ALL" || !slices.Contains(s.Capabilities.Add, "SYS_ADMIN") || s.Privileged != nil {
		t.Errorf("security %+v", s)
	}
	if c.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		t.Errorf("termination message policy %s", c.TerminationMessagePolicy)
	}
	if spec.NodeSelector["pool"] != "build" || spec.NodeSelector["kubernetes.io/arch"] != "arm64" || spec.NodeSelector["kubernetes.io/os"] != "linux" || len(spec.Tolerations) != 1 || c.Resources.Limits.Memory().String() != "4Gi" {
		t.Errorf("settings of the pod: %v, %v, %v", spec.NodeSelector, spec.Tolerations, c.Resources)
	}
	if *job.Spec.ActiveDeadlineSeconds != 600 || *job.Spec.BackoffLimit != 3 || job.Spec.Template.Labels["team"] != "os" {
		t.Errorf("job %+v", job.Spec)
	}
	for _, key := range []string{"ephemeral-build-object", "on-cluster-layering", "rendered-machine-config", "target-machine-config-pool", "machine-os-config", "machine-os-build"} {
		for what, labels := range map[string]map[string]string{"Job": job.Labels, "pod": job.Spec.Template.Labels, "ConfigMap": w.configMaps()[0].Labels} {
			if _, there := labels[group+key]; !there {
				t.Errorf("the %s has no label %s", what, key)
			}
		}
	}
	for _, o := range []client.Object{&job, &w.configMaps()[0]} {
		if owner := metav1.GetControllerOf(o); owner == nil || owner.UID != b.UID {
			t.Errorf("%s is owned by %+v", o.GetName(), owner)
		}
	}
	for _, m := range w.configMaps() {
		if text, ok := m.Data["Containerfile"]; ok && (!strings.Contains(text, "RUN arm") || strings.Contains(text, "RUN any")) {
			t.Errorf("the Containerfile is not the one for the architecture:\n%s", text)
		}
	}
	rules := job.Spec.PodFailurePolicy.Rules
	if len(rules) != 3 || rules[0].Action != "FailJob" || fmt.Sprint(rules[0].OnExitCodes.Values) != "[1 2 3]" || rules[1].Action != "Ignore" || rules[2].Action != "Count" || fmt.Sprint(rules[2].OnExitCodes.Values) != "[4 5 143]" {
		t.Errorf("rules %+v", rules)
	}
}

// TestNoSecretIsCopied: one that is rotated has to reach the pod.
func TestNoSecretIsCopied(t *testing.T) {
	t.Parallel()
	w := driven(t)
	w.building()
	if n := len(w.secrets()); n != 0 {
		t.Errorf("%d secrets were made", n)
	}
}

// TestNamesThatAreTaken: an object that is in the way of a build's is named, is left
// alone, and is not asked for again and again.
func TestNamesThatAreTaken(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		// made is the object of another maker that has the name of a build's.
		made func(*mcfgv1.MachineOSBuild) client.Object
	}{
		{"ConfigMap", func(b *mcfgv1.MachineOSBuild) client.Object {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "containerfile-" + b.Name}, Data: map[string]string{"mine": "1"}}
		}},
		{"Job", func(b *mcfgv1.MachineOSBuild) client.Object {
			j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "build-" + b.Name}}
			j.Spec.Suspend = ptr.To(true)
			j.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "x"}}}
			return j
		}},
		{"MachineOSBuild", func(b *mcfgv1.MachineOSBuild) client.Object {
			return &mcfgv1.MachineOSBuild{ObjectMeta: metav1.ObjectMeta{Name: b.Name}, Spec: b.Spec}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.drive = newReconciler(t, server.Config)
			w.until("a build is made", func() bool { return len(w.builds()) == 1 })
			b := w.build()
			w.must(admin.Delete(w.ctx(), b)) // it is known by which name the next one goes
			other := tt.made(b)
			w.must(admin.Create(w.ctx(), other))
			w.until("the config says what is in the way", func() bool {
				c := meta.FindStatusCondition(w.config().Status.Conditions, "ImageReady")
				return c != nil && c.Status == metav1.ConditionFalse && c.Reason == "NameTaken" && strings.Contains(c.Message, tt.name+" "+other.GetName())
			})
			got, err := w.drive.Reconcile(w.ctx(), ctrl.Request{NamespacedName: client.ObjectKey{Name: w.name}})
			if err != nil || got.RequeueAfter != time.Minute {
				t.Errorf("it looks again after %v (%v), want a minute", got.RequeueAfter, err)
			}
			uid := other.GetUID()
			w.must(admin.Get(w.ctx(), client.ObjectKeyFromObject(other), other))
			if other.GetUID() != uid || other.GetDeletionTimestamp() != nil {
				t.Errorf("the other's %s is not left alone", tt.name)
			}
			w.must(admin.Delete(w.ctx(), other, client.PropagationPolicy(metav1.DeletePropagationBackground)))
			w.until("it heals", func() bool { return w.only() != nil && is(w.only(), mcfgv1.MachineOSBuildPrepared) })
		})
	}
}
