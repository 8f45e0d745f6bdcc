package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	runtimeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

// TestPoolGetsItsImage is the whole way from a pool to its image, in a pod that may
// no more than it must.
func TestPoolGetsItsImage(t *testing.T) {
	t.Parallel()
	p := newPool(t, []string{"FROM configs AS final", "RUN GATE", "RUN echo admin > /usr/share/admin"})
	arrived(t, p.name, 1)

	pod := p.pod()
	c := pod.Spec.Containers[0]
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers || c.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
		c.SecurityContext.Privileged != nil || pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken {
		t.Errorf("the pod may more than it must: %+v", pod.Spec)
	}
	if log := p.log(pod); !strings.Contains(log, "Store: /var/lib/containers/storage, overlay") || !strings.Contains(log, "user namespace: pod") {
		t.Errorf("the store is not native overlay in the user namespace of the pod:\n%s", log)
	}
	openGate(t, p.name)

	img := p.image(p.succeeded())
	tree := bases.Flatten(t, img)
	text, _ := tree.File(t, "/etc/machine-config-daemon/currentconfig")
	applied, _ := tree.File(t, "/usr/share/applied.json")
	if !strings.Contains(string(text), `"name":"rendered-`+p.name+`"`) || string(applied) != string(text) {
		t.Errorf("the MachineConfig is %q, applied was %q", text, applied)
	}
	for path, want := range map[string]string{
		"/usr/share/admin": "admin\n",
		"/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt": string(ca),
		"/usr/share/anchors": string(ca),
	} {
		if got, _ := tree.File(t, path); string(got) != want {
			t.Errorf("%s is %q", path, got)
		}
	}
	labels := bases.Config(t, img).Config.Labels
	if labels["machineconfig"] != "rendered-"+p.name || labels["machineconfigpool"] != p.name || labels["baseOSContainerImage"] != osImage(t) {
		t.Errorf("the labels are %v", labels)
	}
}

// TestFailureIsExplained is the check of the pull request that retries came from.
func TestFailureIsExplained(t *testing.T) {
	for _, tt := range []struct {
		name          string
		containerfile []string
		password      string
		reason        result.Reason
		says          []string
	}{
		{"syntax error", []string{"FROM configs AS final", "RUNN true"}, "", result.ReasonContainerfileInvalid, []string{"which is line 2 of the MachineOSConfig's part", "RUNN"}},
		{"failing RUN", []string{"FROM configs AS final", "RUN echo no luck >&2; exit 1"}, "", result.ReasonStepFailed, []string{"which is line 2 of the MachineOSConfig's part", "echo no luck", "exited 1: no luck"}},
		{"invalid push secret", []string{"FROM configs AS final", "RUN true"}, "not the password", result.ReasonPushUnauthorized, []string{"401", host}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPool(t, tt.containerfile, func(config *mcfgv1.MachineOSConfig) {
				if tt.password != "" {
					(&pool{t, config.Name}).pushSecret(tt.password)
				}
			})
			old, c := p.failed()
			if c.Reason != string(tt.reason) {
				t.Errorf("the reason is %s, want %s", c.Reason, tt.reason)
			}
			for _, text := range tt.says {
				if !strings.Contains(c.Message, text) {
					t.Errorf("%q does not say %q", c.Message, text)
				}
			}
			pod := p.pod()
			if log := p.log(pod); !strings.Contains(log, "\nRetry 3/3 exited 1, no more retries left.") || strings.Contains(log, password) {
				t.Errorf("the log of the pod is\n%s", log)
			}
			p.result(pod)
			var maps corev1.ConfigMapList
			if n := p.list(&maps); len(p.jobs()) != 1 || n < 3 {
				t.Errorf("%d Jobs and %d ConfigMaps are kept", len(p.jobs()), n)
			}
			if tt.name == "syntax error" {
				end := pod.Status.ContainerStatuses[0].State.Terminated
				if took := end.FinishedAt.Sub(end.StartedAt.Time); took > 10*time.Second {
					t.Errorf("the syntax error took %v", took)
				}
			}
			if tt.password != "" {
				rebuildAfterCorrection(p, old)
			}
		})
	}
}

// rebuildAfterCorrection corrects the push secret, asks for a rebuild, and checks
// that what happens, happens in the order of docs/force-rebuild.md.
func rebuildAfterCorrection(p *pool, old *mcfgv1.MachineOSBuild) {
	events := p.record()
	p.pushSecret(password)
	p.forceRebuild()
	p.rebuilt(old.UID)
	p.succeeded()
	want := []string{"request accepted", "old Job deleted", "old build deleted", "new build added", "new Job added", "request cleared"}
	var got []string
	for _, e := range events() {
		if slices.Contains(want, e) && !slices.Contains(got, e) {
			got = append(got, e)
		}
	}
	if !slices.Equal(got, want) {
		p.Errorf("this happened:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// record watches the pool's objects. The function that it returns gives what
// happened to them, in the order in which the API server stored it.
func (p *pool) record() func() []string {
	p.Helper()
	type event struct {
		version int
		what    string
	}
	var mu sync.Mutex
	var events []event
	old := map[string]bool{}
	var watches []watch.Interface
	var ended sync.WaitGroup
	ctx := context.Background()
	selector := runtimeclient.MatchingLabels{group + "machine-os-config": p.name}
	for _, kind := range []struct {
		list    runtimeclient.ObjectList
		options []runtimeclient.ListOption
		name    string
	}{
		{&mcfgv1.MachineOSBuildList{}, []runtimeclient.ListOption{selector}, "build"},
		{&batchv1.JobList{}, []runtimeclient.ListOption{selector, runtimeclient.InNamespace(operatorNamespace)}, "Job"},
		{&mcfgv1.MachineOSConfigList{}, []runtimeclient.ListOption{runtimeclient.MatchingFields{"metadata.name": p.name}}, "config"},
	} {
		p.must(admin.List(ctx, kind.list, kind.options...))
		p.must(meta.EachListItem(kind.list, func(o runtime.Object) error {
			old[string(o.(runtimeclient.Object).GetUID())] = true
			return nil
		}))
		w, err := admin.Watch(ctx, kind.list, append(kind.options, &runtimeclient.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: kind.list.GetResourceVersion()}})...)
		p.must(err)
		watches = append(watches, w)
		ended.Go(func() {
			for e := range w.ResultChan() {
				o, ok := e.Object.(runtimeclient.Object)
				if !ok {
					continue
				}
				what := map[bool]string{true: "old ", false: "new "}[old[string(o.GetUID())]] + kind.name + " " + strings.ToLower(string(e.Type))
				if kind.name == "config" {
					_, accepted := o.GetAnnotations()["strata.build/rebuild"]
					_, requested := o.GetAnnotations()[force]
					what = map[[2]bool]string{{true, true}: "request accepted", {true, false}: "request made", {false, false}: "request cleared"}[[2]bool{requested, accepted}]
				}
				version, _ := strconv.Atoi(o.GetResourceVersion())
				mu.Lock()
				events = append(events, event{version, what})
				mu.Unlock()
			}
		})
	}
	return func() (what []string) {
		for _, w := range watches {
			w.Stop()
		}
		ended.Wait()
		slices.SortStableFunc(events, func(a, b event) int { return a.version - b.version })
		for _, e := range events {
			what = append(what, e.what)
		}
		return what
	}
}

func TestPushSecretRotatedDuringRun(t *testing.T) {
	t.Parallel()
	p := newPool(t, []string{"FROM configs AS final", "RUN GATE"}, func(config *mcfgv1.MachineOSConfig) {
		(&pool{t, config.Name}).pushSecret("not the password")
	})
	arrived(t, p.name, 1)
	p.pushSecret(password)
	mounted := "/var/lib/kubelet/pods/" + string(p.pod().UID) + "/volumes/kubernetes.io~secret/final-image-push-creds/config.json"
	await(t, "the kubelet updates the volume", func(context.Context) (bool, error) {
		text, err := onNode("cat", mounted)
		return strings.Contains(text, password), err
	})
	openGate(t, p.name)
	p.succeeded()
}

func TestThreePoolsAtOnce(t *testing.T) {
	t.Parallel()
	var pools []*pool
	for i := range 3 {
		pools = append(pools, newPool(t, []string{"FROM configs AS final", "RUN GATE", fmt.Sprintf("RUN echo %d > /usr/share/number", i)}))
	}
	for _, p := range pools {
		arrived(t, p.name, 1)
	}
	for _, p := range pools {
		openGate(t, p.name)
	}
	for i, p := range pools {
		if text, _ := bases.File(t, p.image(p.succeeded()), "/usr/share/number"); string(text) != fmt.Sprintf("%d\n", i) {
			t.Errorf("the image of pool %d has %q", i, text)
		}
	}
}

func TestConfigDeletedDuringABuild(t *testing.T) {
	t.Parallel()
	p := newPool(t, []string{"FROM configs AS final", "RUN GATE"})
	arrived(t, p.name, 1)
	p.must(admin.Delete(t.Context(), p.config()))
	await(t, "nothing is left", func(context.Context) (bool, error) {
		return p.list(&mcfgv1.MachineOSBuildList{}) == 0 && p.nothingLeft(), nil
	})
}

// TestReasonWhileItIsSo looks at what keeps a build from its end, or takes its pod
// away, while it does.
func TestReasonWhileItIsSo(t *testing.T) {
	for _, tt := range []struct {
		name, step, settings, reason string
		says                         []string
	}{
		{"memory", "RUN tail -c 600m /dev/zero > /dev/null", "{resources: {limits: {memory: 256Mi}}, agent: {retry-delay: 100ms}}", "StepOutOfMemory", []string{"256", "tail -c 600m"}},
		{"volume", "RUN dd if=/dev/zero of=/zero bs=1M count=300 && sleep 600", "{storage: 100Mi}", "PodEvicted", []string{"100Mi"}},
		{"unschedulable", "RUN true", "{nodeSelector: {example.com/disk: fast}}", "Unschedulable", []string{"node affinity/selector"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPool(t, []string{"FROM configs AS final", tt.step}, buildPod(tt.settings))
			message := p.waits(tt.reason)
			for _, text := range tt.says {
				if !strings.Contains(message, text) {
					t.Errorf("%q does not say %q", message, text)
				}
			}
		})
	}
}

// TestExamplePool does what README says.
func TestExamplePool(t *testing.T) {
	if err := operated(); err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	run := func(command string) string {
		t.Helper()
		cmd := exec.Command("bash", "-ec", command)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(dir, "kubeconfig"), "PATH="+programs+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return string(out)
	}
	p := &pool{t, "worker"}
	t.Cleanup(p.leave)
	run("examples/pool/apply")
	run("kubectl wait --for=condition=ImageReady machineosconfig/worker --timeout=2m")
	b := p.succeeded()
	out := run("kubectl get machineosconfig worker -o jsonpath='{.status.currentImagePullSpec}{\"\\n\"}'")
	if want := string(b.Status.DigestedImagePushSpec) + "\n"; out != want {
		t.Errorf("README's command prints %q, want %q", out, want)
	}
}
