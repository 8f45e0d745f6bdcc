package controller

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/controller"
	"github.com/strata-build/strata/controller/manifests"
	"github.com/strata-build/strata/test/apiserver"
)

// running is a controller as cmd/controller runs it, with caches and workers.
type running struct {
	registry *prometheus.Registry
	cancel   context.CancelFunc
	ended    chan struct{}
	elected  <-chan struct{}
}

// run starts a controller. It ends with stop or the test.
func run(t testing.TB, as *rest.Config, elect string) *running {
	t.Helper()
	o := options()
	mgr, err := ctrl.NewManager(as, manager.Options{
		Scheme:                        scheme,
		Cache:                         controller.CacheOptions(o.Namespace),
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		Controller:                    config.Controller{SkipNameValidation: ptr.To(true)},
		LeaderElection:                elect != "",
		LeaderElectionID:              elect,
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: false, // as when it is killed
		LeaseDuration:                 ptr.To(4 * time.Second),
		RenewDeadline:                 ptr.To(3 * time.Second),
		RetryPeriod:                   ptr.To(500 * time.Millisecond),
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &running{registry: prometheus.NewRegistry(), ended: make(chan struct{}), elected: mgr.Elected()}
	if err := controller.Add(mgr, o, r.registry, 4); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(r.ended)
		_ = mgr.Start(ctx) // it fails when it is stopped in the middle of a call
	}()
	t.Cleanup(r.stop)
	return r
}

func (r *running) stop() {
	r.cancel()
	<-r.ended
}

// installed applies what `controller manifests` prints with kubectl, and returns
// the identity of the controller that has the rights of it and no other.
func installed(t testing.TB) *rest.Config {
	t.Helper()
	if err := sharing(); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	o := options()
	err := manifests.Write(&text, manifests.Settings{Namespace: namespace, Image: o.AgentImage, BuildServiceAccount: o.BuildServiceAccount, Privilege: o.Privilege, Replicas: 2, CreateNamespace: true})
	if err != nil {
		t.Fatal(err)
	}
	binary, err := apiserver.Binary()
	if err != nil {
		t.Fatal(err)
	}
	kubectl := exec.Command(binary, "--kubeconfig", server.Kubeconfig, "apply", "--server-side", "--force-conflicts", "-f", "-")
	kubectl.Args[0] = "kubectl"
	kubectl.Stdin = &text
	if out, err := kubectl.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
	as := rest.CopyConfig(server.Config)
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":strata-controller", Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	return as
}

// TestLeaseThatIsHeldForYears: a lease is as long as it says itself, whatever the settings
// of those who wait for it are. So the Machine Config Operator's builder is kept away, which
// has the same library: docs/quickstart.md.
func TestLeaseThatIsHeldForYears(t *testing.T) {
	t.Parallel()
	if err := sharing(); err != nil {
		t.Fatal(err)
	}
	now := metav1.NowMicro()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "held"}, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To("nobody-who-renews-it"), LeaseDurationSeconds: ptr.To(int32(315360000)), AcquireTime: &now, RenewTime: &now,
	}}
	ctx := context.Background()
	if err := admin.Create(ctx, lease); err != nil {
		t.Fatal(err)
	}
	r := run(t, server.Config, "held")
	select {
	case <-r.elected:
		t.Fatal("the lease was taken")
	case <-time.After(6 * time.Second): // longer than its own settings would have it
	}
	if err := admin.Delete(ctx, lease); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.elected:
	case <-time.After(time.Minute):
		t.Fatal("the lease was not taken when it was gone")
	}
	r.stop()
}

// TestWithItsOwnRights runs the controller with the rights of its manifests through
// a success, a failure and a rebuild, and looks at events and metrics.
func TestWithItsOwnRights(t *testing.T) {
	r := run(t, installed(t), "rights")
	w := newWorld(t)
	w.failed()
	old := w.build()
	w.annotate(force, ptr.To("again"))
	w.rebuiltByItself(old)
	_, pod := w.building()
	bytes := int64(42)
	w.end(pod, resultOf(result.ReasonSucceeded, func(r *result.Result) {
		r.Phases = map[result.Phase]result.PhaseStats{result.Push: {Seconds: 9, Attempts: 2, Bytes: &bytes}}
		r.Attempts = []result.Attempt{{Phase: result.Push, N: 1, Of: 3, Class: result.ClassTransient}}
	}))
	w.until("the build is Succeeded and nothing is left", func() bool {
		b := w.only()
		return b != nil && is(b, mcfgv1.MachineOSBuildSucceeded) && w.nothingLeft() && w.config().Status.CurrentImagePullSpec != ""
	})
	w.consistent()

	page := httptest.NewRecorder()
	promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := page.Body.String()
	for _, line := range []string{
		`strata_builds_total{outcome="Failed",pool="NAME",reason="StepFailed"} 1`,
		`strata_builds_total{outcome="Succeeded",pool="NAME",reason="Succeeded"} 1`,
		`strata_failed_attempts_total{class="Transient",phase="Push",pool="NAME"} 1`,
		`strata_transferred_bytes_total{phase="Push",pool="NAME"} 42`,
		`ocl_build_total{pool="NAME",state="failed"} 1`,
		`ocl_build_total{pool="NAME",state="succeeded"} 1`,
		`ocl_image_push_total{pool="NAME",state="succeeded"} 1`,
	} {
		line = strings.ReplaceAll(line, "NAME", w.name)
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
	if n, err := testutil.GatherAndCount(r.registry, "strata_queue_seconds", "strata_phase_seconds", "ocl_build_state", "mco_mosc_count"); err != nil || n < 4 {
		t.Errorf("%d metrics, %v", n, err)
	}
	w.until("each change of phase has an event of the build and of the config", func() bool {
		var list eventsv1.EventList
		w.must(admin.List(w.ctx(), &list))
		seen := map[string]bool{}
		for _, e := range list.Items {
			if e.Regarding.Name == w.name || strings.HasPrefix(e.Regarding.Name, w.name+"-") {
				seen[e.Regarding.Kind+" "+e.Reason] = true
			}
		}
		for _, want := range []string{
			"MachineOSBuild BuildPrepared", "MachineOSBuild BuildStarted", "MachineOSBuild BuildFailed", "MachineOSBuild BuildCompleted",
			"MachineOSConfig BuildStarted", "MachineOSConfig BuildFailed", "MachineOSConfig BuildCompleted", "MachineOSConfig RebuildRequested", "MachineOSConfig BuildDeleted",
		} {
			if !seen[want] {
				return false
			}
		}
		return true
	})
	r.stop()
}

// rebuiltByItself is rebuilt for a controller that is not driven.
func (w *world) rebuiltByItself(old *mcfgv1.MachineOSBuild) {
	w.Helper()
	w.until("a new build runs and the request is cleared", func() bool {
		b := w.only()
		return b != nil && b.UID != old.UID && is(b, mcfgv1.MachineOSBuildPrepared) && len(w.jobs()) == 1 && !w.requested()
	})
}

// TestBuildPodsHaveNoRights asks the API server what the account of build pods may do.
func TestBuildPodsHaveNoRights(t *testing.T) {
	installed(t)
	as := rest.CopyConfig(server.Config)
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":strata-build", Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	c, err := client.New(as, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []client.ObjectList{&corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.PodList{}, &mcfgv1.MachineOSConfigList{}} {
		if err := c.List(t.Context(), list, client.InNamespace(namespace)); err == nil {
			t.Errorf("it may list %T", list)
		}
	}
}

// TestControllerIsRestarted is case K01: a request that was there before the
// controller, and a controller that ends and starts again all the time.
func TestControllerIsRestarted(t *testing.T) {
	as := installed(t)
	first := run(t, as, "")
	w := newWorld(t)
	old := w.failed()
	first.stop()
	w.annotate(force, ptr.To("1"))
	var counted []*caller
	for k := 1; ; k++ {
		c, config := processAs(t, as, fault{at: k, arrives: k%2 == 0})
		counted = append(counted, c)
		r := run(t, config, "")
		done := false
		w.until("the controller stops, or has nothing more to do", func() bool {
			b := w.only()
			w.clearedOnlyWhenItRuns()
			done = b != nil && b.UID != old.UID && is(b, mcfgv1.MachineOSBuildPrepared) && !w.requested() && w.named(b)
			return c.stopped() || done
		})
		r.stop()
		if done {
			break
		}
		if k > 40 {
			t.Fatal("it does not come to an end")
		}
	}
	made := 0
	for _, c := range counted {
		made += c.created["machineosbuilds"]
	}
	if made != 1 {
		t.Errorf("%d builds were made", made)
	}
	w.consistent()
	t.Logf("%d controllers", len(counted))
}

// TestTwoReplicas kills the leader in the middle of a rebuild.
func TestTwoReplicas(t *testing.T) {
	as := installed(t)
	c, config := processAs(t, as, fault{})
	leader := run(t, config, "replicas")
	select {
	case <-leader.elected:
	case <-time.After(time.Minute):
		t.Fatal("nobody is elected")
	}
	d, config := processAs(t, as, fault{})
	standby := run(t, config, "replicas")
	w := newWorld(t)
	old := w.failed()
	c.Lock()
	before := c.changes
	c.at = before + 6 // in the middle
	c.Unlock()
	w.annotate(force, ptr.To("1"))
	w.until("the leader is dead", c.stopped)
	leader.stop()
	w.rebuiltByItself(old)
	standby.stop()
	w.consistent()
	if n := c.created["machineosbuilds"] + d.created["machineosbuilds"]; n != 2 || d.changes == 0 {
		t.Errorf("%d builds were made in all, want the first and one more; the other replica made %d changes", n, d.changes)
	}
	var lease coordinationv1.Lease
	w.must(admin.Get(w.ctx(), client.ObjectKey{Namespace: namespace, Name: "replicas"}, &lease))
	if *lease.Spec.LeaseTransitions < 1 {
		t.Errorf("nobody took over: %+v", lease.Spec)
	}
}

// freeAddress is a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestProgram runs cmd/controller itself: probes, metrics, and a signal.
func TestProgram(t *testing.T) {
	installed(t)
	binary := filepath.Join(t.TempDir(), "controller")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/strata-build/strata/cmd/controller").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	metrics, probes := freeAddress(t), freeAddress(t)
	c := exec.Command(binary, "--kubeconfig", server.Kubeconfig, "--agent-image", "registry.example:5000/strata:1", "--metrics-address", metrics, "--probe-address", probes)
	var log bytes.Buffer
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.until("it builds", func() bool { return len(w.jobs()) == 1 })
	for url, text := range map[string]string{"http://" + probes + "/healthz": "ok", "http://" + probes + "/readyz": "ok", "http://" + metrics + "/metrics": "strata_active_builds"} {
		w.until(url+" answers", func() bool {
			response, err := http.Get(url)
			if err != nil {
				return false
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			return err == nil && response.StatusCode == http.StatusOK && strings.Contains(string(body), text)
		})
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("after a signal: %v\n%s", err, log.String())
	}
	for _, line := range strings.Split(strings.TrimSpace(log.String()), "\n") {
		if !strings.HasPrefix(line, "{") {
			t.Errorf("a line of the log is not JSON: %s", line)
		}
	}
	out, err := exec.Command(binary).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--agent-image") {
		t.Errorf("without an image: %v, %s", err, out)
	}
}
