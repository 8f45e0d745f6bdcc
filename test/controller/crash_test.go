package controller

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/strata-build/strata/agent/result"
)

// fault is what happens at the k-th call that changes something. The reconciler
// keeps nothing in memory, so a read that fails leaves what the change before it
// left, and is not another case.
type fault struct {
	// at is the call, from 1; 0 for none.
	at int
	// arrives tells whether the call takes effect, though its answer is lost.
	arrives bool
	// goesOn tells whether the process lives on and its next calls succeed.
	goesOn bool
}

func (f fault) String() string {
	return fmt.Sprintf("call %d, arrives: %v, process goes on: %v", f.at, f.arrives, f.goesOn)
}

// caller counts the changes that a process makes, and injects a fault.
type caller struct {
	fault

	sync.Mutex
	changes int
	created map[string]int // by resource
}

var errStopped = errors.New("the process has stopped")

// through is a connection of the process; it has several.
type through struct {
	http.RoundTripper
	*caller
}

func (c through) RoundTrip(request *http.Request) (*http.Response, error) {
	changes := request.Method != http.MethodGet && !strings.Contains(request.URL.Path, "/leases") && !strings.HasSuffix(request.URL.Path, "/events")
	c.Lock()
	if changes {
		c.changes++
	}
	now := c.at > 0 && changes && c.changes == c.at
	dead := c.at > 0 && !c.goesOn && c.changes >= c.at && !now
	c.Unlock()
	if dead || (now && !c.arrives) {
		return nil, errStopped
	}
	response, err := c.RoundTripper.RoundTrip(request)
	if err == nil && request.Method == http.MethodPost && response.StatusCode == http.StatusCreated {
		parts := strings.Split(strings.TrimSuffix(request.URL.Path, "/"), "/")
		c.Lock()
		c.created[parts[len(parts)-1]]++
		c.Unlock()
	}
	if now && err == nil {
		_ = response.Body.Close()
		return nil, errStopped
	}
	return response, err
}

func (c *caller) stopped() bool {
	c.Lock()
	defer c.Unlock()
	return c.at > 0 && !c.goesOn && c.changes >= c.at
}

// process is what a controller that is stopped connects with.
func process(t testing.TB, f fault) (*caller, *rest.Config) {
	t.Helper()
	return processAs(t, server.Config, f)
}

// processAs does so as somebody else than the administrator.
func processAs(t testing.TB, as *rest.Config, f fault) (*caller, *rest.Config) {
	t.Helper()
	c := &caller{fault: f, created: map[string]int{}}
	config := rest.CopyConfig(as)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return through{next, c} })
	return c, config
}

// flow is something that a controller has to bring to an end.
type flow struct {
	name string
	// before makes what is there when the flow begins, act begins it, and done tells
	// when it has ended.
	before func(*world)
	act    func(*world)
	done   func(*world) bool
	// builds and jobs are how many of these the flow makes.
	builds, jobs int
	// errors asks for calls of which only the answer is lost, too.
	errors bool
	// check looks at the end for what only this flow has.
	check func(*world)
}

// flows share the state that before left in old.
func flows() []flow {
	running := func(w *world) bool {
		b := w.only()
		return b != nil && b.UID != w.old && is(b, mcfgv1.MachineOSBuildPrepared) && len(w.jobs()) == 1 && w.named(b)
	}
	rebuilt := func(w *world) bool {
		return running(w) && !w.requested() && w.config().Annotations["strata.build/rebuild"] == ""
	}
	ended := func(t mcfgv1.BuildProgress) func(*world) bool {
		return func(w *world) bool {
			b, c := w.only(), meta.FindStatusCondition(w.config().Status.Conditions, "ImageReady")
			return b != nil && is(b, t) && c != nil && c.Reason == condition(b, t).Reason
		}
	}
	nothing := func(*world) {}
	ask := func(w *world) { w.annotate(force, ptr.To("1")) }
	return []flow{
		{name: "first build", before: nothing, act: nothing, done: running, builds: 1, jobs: 1, errors: true},
		{
			name: "success", errors: true,
			before: func(w *world) { _, w.pod = w.building() },
			act:    func(w *world) { w.end(w.pod, resultOf(result.ReasonSucceeded)) },
			done: func(w *world) bool {
				return ended(mcfgv1.MachineOSBuildSucceeded)(w) && w.nothingLeft() && w.config().Status.CurrentImagePullSpec != ""
			},
			check: func(w *world) {
				if got := w.only().Status.DigestedImagePushSpec; string(got) != "registry.example:5000/os/layered@"+digest {
					w.Errorf("digestedImagePushSpec %s", got)
				}
			},
		},
		{
			name:   "failure",
			before: func(w *world) { _, w.pod = w.building() },
			act:    func(w *world) { w.end(w.pod, resultOf(result.ReasonStepFailed)) },
			done:   ended(mcfgv1.MachineOSBuildFailed),
			check: func(w *world) {
				if len(w.jobs()) != 1 || len(w.configMaps()) != 3 {
					w.Errorf("a failed build keeps %d Jobs and %d ConfigMaps", len(w.jobs()), len(w.configMaps()))
				}
			},
		},
		{name: "rebuild after failure", before: func(w *world) { w.failed() }, act: ask, done: rebuilt, builds: 1, jobs: 1, errors: true},
		{name: "rebuild after success", before: func(w *world) { w.succeeded() }, act: ask, done: rebuilt, builds: 1, jobs: 1},
		{name: "rebuild while it runs", before: func(w *world) { w.building() }, act: ask, done: rebuilt, builds: 1, jobs: 1},
		{
			name: "delete", before: func(w *world) { w.building() },
			// Nothing is left to the garbage collector of Kubernetes.
			act: func(w *world) {
				w.must(admin.Delete(w.ctx(), w.config(), client.PropagationPolicy(metav1.DeletePropagationOrphan)))
			},
			done: func(w *world) bool { return len(w.builds()) == 0 && w.nothingLeft() },
		},
		{
			name: "delete and make again", before: func(w *world) { w.building() },
			act: func(w *world) {
				w.must(admin.Delete(w.ctx(), w.config(), client.PropagationPolicy(metav1.DeletePropagationOrphan)))
				w.until("the config is gone", func() bool { return w.isGone(&mcfgv1.MachineOSConfig{ObjectMeta: metav1.ObjectMeta{Name: w.name}}) })
				w.createConfig()
			},
			done: running, builds: 1, jobs: 1,
		},
		{
			name: "other inputs", before: func(w *world) { w.building() },
			act: func(w *world) { w.render(2) },
			done: func(w *world) bool {
				n := 0
				for _, b := range w.builds() {
					switch {
					case b.UID == w.old && is(&b, mcfgv1.MachineOSBuildInterrupted):
						n++
					case b.UID != w.old && is(&b, mcfgv1.MachineOSBuildPrepared):
						n++
					}
				}
				return n == 2 && w.named(nil) && len(w.jobs()) == 1 && w.nothingOf(w.old)
			},
			builds: 1, jobs: 1,
		},
	}
}

// TestFaultsAtEveryCall stops the controller at its k-th change, for every k, in
// every flow, before the call arrives and after, and lets a new one go on; and lets,
// in flows that make and delete everything there is, the answer alone be lost.
func TestFaultsAtEveryCall(t *testing.T) {
	t.Parallel()
	for _, f := range flows() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			changes := f.run(t, fault{})
			t.Logf("%d changes", changes)
			if changes < 2 {
				t.Fatal("that cannot be all of the flow")
			}
			for k := 1; k <= changes; k++ {
				faults := []fault{{at: k}, {at: k, arrives: true}}
				if f.errors {
					faults = append(faults, fault{at: k, arrives: true, goesOn: true})
				}
				for _, at := range faults {
					f.run(t, at)
					if t.Failed() {
						t.Fatalf("of %d: %v", changes, at)
					}
				}
			}
		})
	}
}

// run plays a flow in a world of its own, with a fault, and returns how many
// changes there were.
func (f *flow) run(t *testing.T, at fault) int {
	t.Helper()
	w := newWorld(t)
	w.drive = newReconciler(t, server.Config)
	f.before(w)
	if all := w.builds(); len(all) == 1 {
		w.old = all[0].UID
	}
	f.act(w)

	first, config := process(t, at)
	w.drive = newReconciler(t, config)
	for start := time.Now(); !f.done(w) && !first.stopped(); {
		_, err := w.drive.Reconcile(w.ctx(), ctrl.Request{NamespacedName: client.ObjectKey{Name: w.name}})
		w.must(unless(err, errStopped))
		w.clearedOnlyWhenItRuns()
		<-time.After(20 * time.Millisecond)
		if time.Since(start) > time.Minute {
			t.Fatalf("%s does not end:\n%s", f.name, w.dump())
		}
	}
	changes := first.changes

	second, config := process(t, fault{})
	w.drive = newReconciler(t, config)
	w.until(f.name+" ends", func() bool { w.clearedOnlyWhenItRuns(); return f.done(w) })
	w.settle()
	if !f.done(w) {
		t.Errorf("%s had ended and does no more:\n%s", f.name, w.dump())
	}
	if got := first.created["machineosbuilds"] + second.created["machineosbuilds"]; got != f.builds {
		t.Errorf("%d builds were made, want %d", got, f.builds)
	}
	if got := first.created["jobs"] + second.created["jobs"]; got != f.jobs {
		t.Errorf("%d Jobs were made, want %d", got, f.jobs)
	}
	w.consistent()
	if f.check != nil {
		f.check(w)
	}
	if t.Failed() {
		t.Log(w.dump())
	}
	w.leave()
	return changes
}

// settle lets the controller work until it writes nothing more.
func (w *world) settle() {
	w.Helper()
	for range 3 {
		_, err := w.drive.Reconcile(w.ctx(), ctrl.Request{NamespacedName: client.ObjectKey{Name: w.name}})
		w.must(err)
	}
}

// clearedOnlyWhenItRuns checks the half of the promise that must hold at every
// moment of a rebuild: a request that is gone has a build that runs.
func (w *world) clearedOnlyWhenItRuns() {
	w.Helper()
	var config mcfgv1.MachineOSConfig
	if w.old == "" || !w.wasRequested || admin.Get(w.ctx(), client.ObjectKey{Name: w.name}, &config) != nil {
		return
	}
	if _, there := config.Annotations[force]; there {
		return
	}
	if b := w.only(); b == nil || b.UID == w.old || len(w.jobs()) != 1 || w.jobs()[0].Labels["strata.build/build-uid"] != string(b.UID) {
		w.Errorf("the request is cleared, and no new build runs:\n%s", w.dump())
	}
}

// consistent checks what must hold at the end of every flow.
func (w *world) consistent() {
	w.Helper()
	active := 0
	uids := map[string]bool{}
	for _, b := range w.builds() {
		uids[string(b.UID)] = true
		if !is(&b, mcfgv1.MachineOSBuildSucceeded) && !is(&b, mcfgv1.MachineOSBuildFailed) && !is(&b, mcfgv1.MachineOSBuildInterrupted) {
			active++
			w.statusIsTrue(&b)
		}
		if owner := metav1.GetControllerOf(&b); owner == nil || owner.UID != w.config().UID {
			w.Errorf("build %s is owned by %v", b.Name, owner)
		}
		for _, c := range b.Status.Conditions {
			if strings.Contains(c.Message, "already exists") || strings.Contains(c.Reason, "AlreadyExists") {
				w.Errorf("a condition tells of a collision: %+v", c)
			}
		}
	}
	if active > 1 {
		w.Errorf("%d builds are active", active)
	}
	if n := len(w.jobs()); n > 1 {
		w.Errorf("%d Jobs", n)
	}
	var all []client.Object
	for _, o := range w.jobs() {
		all = append(all, &o)
	}
	for _, o := range w.pods() {
		all = append(all, &o)
	}
	for _, o := range w.configMaps() {
		all = append(all, &o)
	}
	for _, o := range w.secrets() {
		all = append(all, &o)
	}
	for _, o := range all {
		if !uids[o.GetLabels()["strata.build/build-uid"]] {
			w.Errorf("%T %s is an orphan", o, o.GetName())
		}
	}
}

// named tells whether the config names the build as its own, or, of several, the
// active one.
func (w *world) named(b *mcfgv1.MachineOSBuild) bool {
	w.Helper()
	for _, other := range w.builds() {
		if b == nil && other.UID != w.old {
			b = &other
		}
	}
	config := w.config()
	ref := config.Status.MachineOSBuild
	return b != nil && ref != nil && ref.Name == b.Name && config.Annotations[group+"current-machine-os-build"] == b.Name
}

// statusIsTrue checks the status of an active build against what is there.
func (w *world) statusIsTrue(b *mcfgv1.MachineOSBuild) {
	w.Helper()
	jobs := w.jobs()
	prepared, builds := is(b, mcfgv1.MachineOSBuildPrepared), is(b, mcfgv1.MachineOSBuilding)
	if prepared && builds || (prepared || builds) != (len(jobs) == 1) {
		w.Errorf("Prepared is %v and Building %v with %d Jobs", prepared, builds, len(jobs))
	}
	if len(jobs) == 1 {
		if b.Status.Builder == nil || b.Status.Builder.Job.Name != jobs[0].Name {
			w.Errorf("builder %+v, want Job %s", b.Status.Builder, jobs[0].Name)
		}
		if !b.Status.BuildStart.Equal(&jobs[0].CreationTimestamp) {
			w.Errorf("buildStart %v, want that of the Job, %v", b.Status.BuildStart, jobs[0].CreationTimestamp)
		}
	}
	var related, there []string
	for _, o := range b.Status.RelatedObjects {
		related = append(related, o.Name)
	}
	for _, m := range w.configMaps() {
		there = append(there, m.Name)
	}
	if fmt.Sprint(related) != fmt.Sprint(there) {
		w.Errorf("relatedObjects %v, want %v", related, there)
	}
	config := w.config()
	if ref := config.Status.MachineOSBuild; ref == nil || ref.Name != b.Name {
		w.Errorf("the config's build is %v, want %s", ref, b.Name)
	}
	if got := config.Annotations[group+"current-machine-os-build"]; got != b.Name {
		w.Errorf("the config's annotation names the build %q, want %s", got, b.Name)
	}
}

func unless(err, expected error) error {
	if err == nil || errors.Is(err, expected) || strings.Contains(err.Error(), expected.Error()) {
		return nil
	}
	return err
}
