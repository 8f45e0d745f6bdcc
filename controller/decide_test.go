package controller

import (
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/strata-build/strata/agent/result"
)

// testSnapshot has a config "worker" with the UID "config" and its pool, and nothing else.
func testSnapshot(changes ...func(*snapshot)) *snapshot {
	s := &snapshot{name: "worker", config: testConfig(), pool: &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}}
	s.pool.Spec.Configuration.Name = "rendered-worker-1"
	for _, change := range changes {
		change(s)
	}
	return s
}

func testConfig() *mcfgv1.MachineOSConfig {
	c := &mcfgv1.MachineOSConfig{ObjectMeta: metav1.ObjectMeta{Name: "worker", UID: "config", ResourceVersion: "7", Annotations: map[string]string{}}}
	c.Spec.MachineConfigPool.Name = "worker"
	c.Spec.RenderedImagePushSpec = "registry.example/os/layered:latest"
	c.Spec.RenderedImagePushSecret.Name = "push"
	return c
}

var (
	now1 = buildName(testConfig(), "rendered-worker-1") // the build of the inputs as they are
	now0 = buildName(testConfig(), "rendered-worker-0") // and of those before
)

// hasBuild adds a build with the UID uid of the inputs.
func hasBuild(name string, uid types.UID, ended mcfgv1.BuildProgress, changes ...func(*mcfgv1.MachineOSBuild)) func(*snapshot) {
	return func(s *snapshot) {
		b := newBuild(testConfig(), name, "rendered-worker-1", nil)
		b.UID = uid
		if ended != "" {
			b.Status.Conditions = []metav1.Condition{{Type: string(ended), Status: metav1.ConditionTrue, Reason: "X"}}
		}
		for _, change := range changes {
			change(b)
		}
		s.builds = append(s.builds, *b)
	}
}

func deleted(b *mcfgv1.MachineOSBuild) {
	b.DeletionTimestamp, b.Finalizers = &metav1.Time{Time: testTime}, []string{"example/held"}
}

func ownedBy(uid types.UID) func(*mcfgv1.MachineOSBuild) {
	return func(b *mcfgv1.MachineOSBuild) {
		b.OwnerReferences[0].UID = uid
		delete(b.Annotations, annotationConfigUID)
	}
}

func serving(id string) func(*mcfgv1.MachineOSBuild) {
	return func(b *mcfgv1.MachineOSBuild) { b.Annotations[annotationRebuild] = id }
}

func objectMeta(name string, build types.UID) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, UID: types.UID(name + "-uid"), Labels: map[string]string{labelBuildUID: string(build), labelBuild: now1, labelConfig: "worker"}}
}

func hasJob(name string, build types.UID, changes ...func(*batchv1.Job)) func(*snapshot) {
	return func(s *snapshot) {
		j := batchv1.Job{ObjectMeta: objectMeta("build-"+name, build)}
		for _, change := range changes {
			change(&j)
		}
		s.jobs = append(s.jobs, j)
	}
}

func hasPod(name string, build types.UID, phase corev1.PodPhase, changes ...func(*corev1.Pod)) func(*snapshot) {
	return func(s *snapshot) {
		p := corev1.Pod{ObjectMeta: objectMeta("build-"+name+"-pod", build), Status: corev1.PodStatus{Phase: phase}}
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "build-" + name, UID: types.UID("build-" + name + "-uid"), Controller: &yes}}
		for _, change := range changes {
			change(&p)
		}
		s.pods = append(s.pods, p)
	}
}

func hasConfigMap(name string, build types.UID) func(*snapshot) {
	return func(s *snapshot) {
		s.configMaps = append(s.configMaps, ofKind("ConfigMap", []metav1.PartialObjectMetadata{{ObjectMeta: objectMeta(name, build)}})...)
	}
}

func hasSecret(name string, build types.UID) func(*snapshot) {
	return func(s *snapshot) {
		s.secrets = append(s.secrets, ofKind("Secret", []metav1.PartialObjectMetadata{{ObjectMeta: objectMeta(name, build)}})...)
	}
}

func asked(key, value string) func(*snapshot) {
	return func(s *snapshot) { s.config.Annotations[key] = value }
}

func pushSpecOf(spec mcfgv1.ImageTagFormat) func(*snapshot) {
	return func(s *snapshot) { s.config.Spec.RenderedImagePushSpec = spec }
}

// accepted lets the requests that are there be accepted, in version 7 of the config.
func accepted(s *snapshot) { accept(s.config) }

// summary writes a plan as a line.
func (p *plan) summary() string {
	var parts []string
	add := func(is bool, text string) {
		if is {
			parts = append(parts, text)
		}
	}
	add(p.accept, "accept")
	for _, b := range p.interrupt {
		add(true, "interrupt "+string(b.UID))
	}
	for _, o := range p.remove {
		add(true, "remove "+kindOf(o)+" "+strings.NewReplacer(now1, "now", now0, "before").Replace(o.GetName()))
	}
	if p.create != nil {
		add(true, "create "+strings.NewReplacer(now1, "now").Replace(p.create.Name)+" for "+p.create.Annotations[annotationRebuild])
	}
	add(p.current != nil, "current")
	add(p.prepare, "prepare")
	add(p.verdict.reason != "", "verdict "+p.verdict.reason)
	add(p.finish, "finish")
	add(p.reason != "", "wait "+p.reason)
	return strings.Join(parts, "; ")
}

func TestDecide(t *testing.T) {
	const force = prefix + "force-rebuild"
	succeededPod := withResult(result.ReasonSucceeded)
	for _, tt := range []struct {
		name string
		s    *snapshot
		want string
	}{
		// First builds, and what they wait for.
		{"nothing yet", testSnapshot(), "create now for ; wait Preparing"},
		{"no pool", testSnapshot(func(s *snapshot) { s.pool = nil }), "wait PoolMissing"},
		{"no pool any more, and a build that works", testSnapshot(func(s *snapshot) { s.pool = nil }, hasBuild(now1, "b", ""), hasJob(now1, "b"), hasPod(now1, "b", corev1.PodRunning)), "current; verdict Building; wait PoolMissing"},
		{"no pool any more, and the build has succeeded", testSnapshot(func(s *snapshot) { s.pool = nil }, hasBuild(now1, "b", ""), hasJob(now1, "b"), hasPod(now1, "b", corev1.PodSucceeded, succeededPod)), "current; verdict Succeeded; wait PoolMissing"},
		{"no pool any more, and no Job yet", testSnapshot(func(s *snapshot) { s.pool = nil }, hasBuild(now1, "b", "")), "wait PoolMissing"},
		{"pool not rendered", testSnapshot(func(s *snapshot) { s.pool.Spec.Configuration.Name = "" }), "wait PoolNotRendered"},
		{"push spec with two namespaces", testSnapshot(pushSpecOf("registry.example/a/b/c:x")), "wait PushSpecUnsupported"},
		{"build, no objects", testSnapshot(hasBuild(now1, "b", "")), "current; prepare; verdict Preparing"},
		{"build, some objects", testSnapshot(hasBuild(now1, "b", ""), hasConfigMap("m", "b")), "current; prepare; verdict Preparing"},
		{"build with its Job", testSnapshot(hasBuild(now1, "b", ""), hasJob(now1, "b")), "current; verdict PodPending"},
		{"build that works", testSnapshot(hasBuild(now1, "b", ""), hasJob(now1, "b"), hasPod(now1, "b", corev1.PodRunning)), "current; verdict Building"},
		{"another's pod is not its own", testSnapshot(hasBuild(now1, "b", ""), hasJob(now1, "b"), hasPod("other", "b", corev1.PodRunning)), "current; verdict PodPending"},
		{
			"a ConfigMap of an active build was deleted", testSnapshot(hasBuild(now1, "b", "", func(b *mcfgv1.MachineOSBuild) {
				b.Status.RelatedObjects = []mcfgv1.ObjectReference{{Name: "m"}}
			}), hasJob(now1, "b")),
			"current; prepare; verdict PodPending",
		},
		{"succeeded just now", testSnapshot(hasBuild(now1, "b", ""), hasJob(now1, "b"), hasPod(now1, "b", corev1.PodSucceeded, succeededPod)), "current; verdict Succeeded"},
		{"succeeded, objects to clear", testSnapshot(hasBuild(now1, "b", mcfgv1.MachineOSBuildSucceeded), hasJob(now1, "b"), hasPod(now1, "b", corev1.PodSucceeded), hasConfigMap("m", "b")), "remove Job build-now; remove Pod build-now-pod; remove ConfigMap m; current"},
		{"failed, objects kept", testSnapshot(hasBuild(now1, "b", mcfgv1.MachineOSBuildFailed), hasJob(now1, "b"), hasConfigMap("m", "b")), "current"},
		{"the Job is being deleted by somebody", testSnapshot(hasBuild(now1, "b", ""), hasJob(now1, "b", func(j *batchv1.Job) { j.DeletionTimestamp = &metav1.Time{} })), "current; verdict OlderBuildStopping"},
		{
			"completed, and the pod with the result is gone", testSnapshot(hasBuild(now1, "b", ""), hasJob(now1, "b", func(j *batchv1.Job) {
				j.Status.Conditions = testJob(jobEnded(batchv1.JobComplete, "", "")).Status.Conditions
			})),
			"remove Job build-now; current; verdict ResultLost",
		},

		// Other inputs.
		{"the Job was deleted, and its pod works on", testSnapshot(hasBuild(now1, "b", ""), hasPod(now1, "b", corev1.PodRunning)), "remove Pod build-now-pod; current; verdict OlderBuildStopping"},
		{"the Job was deleted, and its pod has ended", testSnapshot(hasBuild(now1, "b", ""), hasPod(now1, "b", corev1.PodFailed)), "current; prepare; verdict Preparing"},
		{"an older build works, and the new inputs cannot be built", testSnapshot(pushSpecOf("registry.example/a/b/c:x"), hasBuild(now0, "a", ""), hasJob(now0, "a"), hasPod(now0, "a", corev1.PodRunning)), "interrupt a; remove Job build-before; remove Pod build-before-pod; wait PushSpecUnsupported"},
		{"an older build works", testSnapshot(hasBuild(now0, "a", ""), hasJob(now0, "a"), hasPod(now0, "a", corev1.PodRunning)), "interrupt a; remove Job build-before; remove Pod build-before-pod; create now for ; wait Preparing"},
		{"an older build still stops", testSnapshot(hasBuild(now0, "a", mcfgv1.MachineOSBuildInterrupted), hasPod(now0, "a", corev1.PodRunning), hasBuild(now1, "b", "")), "remove Pod build-before-pod; current; verdict OlderBuildStopping"},
		{"an older build has stopped", testSnapshot(hasBuild(now0, "a", mcfgv1.MachineOSBuildInterrupted), hasBuild(now1, "b", "")), "current; prepare; verdict Preparing"},
		{"an older build had failed", testSnapshot(hasBuild(now0, "a", mcfgv1.MachineOSBuildFailed), hasConfigMap("m", "a"), hasBuild(now1, "b", mcfgv1.MachineOSBuildSucceeded)), "remove ConfigMap m; current"},
		{"inputs of a finished build come back", testSnapshot(hasBuild(now1, "a", mcfgv1.MachineOSBuildSucceeded), hasBuild(now0, "b", mcfgv1.MachineOSBuildSucceeded)), "current"},
		{"inputs of an interrupted build come back", testSnapshot(hasBuild(now1, "a", mcfgv1.MachineOSBuildInterrupted)), "remove MachineOSBuild now; wait OlderBuildRemoving"},

		// Rebuilds.
		{"asked for before anything is there", testSnapshot(asked(force, "")), "accept; wait Rebuilding"},
		{"asked for after a failure", testSnapshot(asked(force, ""), hasBuild(now1, "b", mcfgv1.MachineOSBuildFailed)), "accept; wait Rebuilding"},
		{"accepted, nothing there", testSnapshot(asked(force, ""), accepted), "create now for 7; wait Preparing"},
		{"accepted, pool gone meanwhile", testSnapshot(asked(force, ""), accepted, func(s *snapshot) { s.pool = nil }), "wait PoolMissing"},
		{
			"accepted, objects there", testSnapshot(asked(force, ""), accepted, hasBuild(now1, "b", mcfgv1.MachineOSBuildFailed), hasJob(now1, "b"), hasPod(now1, "b", corev1.PodFailed), hasConfigMap("m", "b"), hasSecret("s", "b")),
			"remove Job build-now; remove Pod build-now-pod; remove ConfigMap m; remove Secret s; wait Rebuilding",
		},
		{"accepted, objects gone", testSnapshot(asked(force, ""), accepted, hasBuild(now1, "b", mcfgv1.MachineOSBuildFailed)), "remove MachineOSBuild now; wait Rebuilding"},
		{"accepted, build held by a finalizer", testSnapshot(asked(force, ""), accepted, hasBuild(now1, "b", "", deleted)), "remove MachineOSBuild now; wait Rebuilding"},
		{"accepted, running", testSnapshot(asked(force, ""), accepted, hasBuild(now1, "b", ""), hasJob(now1, "b")), "remove Job build-now; wait Rebuilding"},
		{"accepted, succeeded", testSnapshot(asked(force, ""), accepted, hasBuild(now1, "b", mcfgv1.MachineOSBuildSucceeded)), "remove MachineOSBuild now; wait Rebuilding"},
		{"accepted, inputs changed meanwhile", testSnapshot(asked(force, ""), accepted, hasBuild(now0, "a", mcfgv1.MachineOSBuildFailed)), "remove MachineOSBuild before; wait Rebuilding"},
		{"accepted, an older success is history", testSnapshot(asked(force, ""), accepted, hasBuild(now0, "a", mcfgv1.MachineOSBuildSucceeded)), "create now for 7; wait Preparing"},
		{"new build, no Job yet", testSnapshot(asked(force, ""), accepted, hasBuild(now1, "b", "", serving("7"))), "current; prepare; verdict Preparing"},
		{"new build runs", testSnapshot(asked(force, ""), accepted, hasBuild(now1, "b", "", serving("7")), hasJob(now1, "b")), "current; verdict PodPending; finish"},
		{"new build has ended already", testSnapshot(asked(force, ""), accepted, hasBuild(now1, "b", mcfgv1.MachineOSBuildFailed, serving("7"))), "current; finish"},
		{"the build of an earlier request", testSnapshot(asked(force, "2"), accepted, hasBuild(now1, "b", mcfgv1.MachineOSBuildFailed, serving("3"))), "remove MachineOSBuild now; wait Rebuilding"},
		{"served, nothing asked", testSnapshot(hasBuild(now1, "b", mcfgv1.MachineOSBuildFailed, serving("7"))), "current"},
		{"an acceptance of another config is none", testSnapshot(asked(force, ""), func(s *snapshot) {
			accept(s.config)
			s.config.UID = "other"
		}), "accept; wait Rebuilding"},

		// What belongs to nobody.
		{"config gone", testSnapshot(hasBuild(now1, "b", ""), hasJob(now1, "b"), func(s *snapshot) { s.config = nil }), "remove Job build-now"},
		{"config gone, objects too", testSnapshot(hasBuild(now1, "b", ""), func(s *snapshot) { s.config = nil }), "remove MachineOSBuild now"},
		{"config being deleted", testSnapshot(hasBuild(now1, "b", ""), hasJob(now1, "b"), func(s *snapshot) { s.config.DeletionTimestamp = &metav1.Time{} }), "remove Job build-now"},
		{"build of an earlier config of this name", testSnapshot(hasBuild(now1, "b", "", ownedBy("earlier")), hasJob(now1, "b")), "remove Job build-now; wait OlderBuildRemoving"},
		{"the same, kept when the config was deleted", testSnapshot(hasBuild(now1, "b", "", func(b *mcfgv1.MachineOSBuild) {
			b.OwnerReferences, b.Annotations[annotationConfigUID] = nil, "earlier"
		})), "remove MachineOSBuild now; wait OlderBuildRemoving"},
		{"the same, of other inputs", testSnapshot(hasBuild(now0, "a", "", ownedBy("earlier"))), "remove MachineOSBuild before; create now for ; wait Preparing"},
		{"objects of a build that is gone", testSnapshot(hasJob(now1, "gone"), hasConfigMap("m", "gone"), hasBuild(now1, "b", "")), "remove Job build-now; remove ConfigMap m; current; verdict OlderBuildStopping"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := decide(tt.s)
			if got := p.summary(); got != tt.want {
				t.Errorf("decided: %s\nwant:    %s", got, tt.want)
			}
			if p.reason != "" && p.message == "" {
				t.Error("it waits and does not say for what")
			}
		})
	}
}

func TestWhatIsHeldIsNamed(t *testing.T) {
	s := testSnapshot(asked(prefix+"rebuild", "x"), accepted, hasBuild(now1, "b", "", deleted))
	p := decide(s)
	for _, text := range []string{"MachineOSBuild " + now1, "example/held"} {
		if !strings.Contains(p.message, text) {
			t.Errorf("%q does not say %q", p.message, text)
		}
	}
}

func TestRequests(t *testing.T) {
	c := testConfig()
	c.Labels = map[string]string{prefix + "rebuildImage": "l"}
	c.Annotations[prefix+"force-rebuild"], c.Annotations[prefix+"rebuild"] = "", "1"
	accept(c)
	a := acceptedOf(c)
	if a == nil || a.ID != "7" || len(a.Requests) != 3 {
		t.Fatalf("accepted %+v", a)
	}
	// One gets another value, one is new where the same key was a label, one is the same.
	c.Annotations[prefix+"rebuild"] = "2"
	c.Annotations[prefix+"rebuildImage"] = "l"
	finish(c, a)
	want := requests{"annotation " + prefix + "rebuild": "2", "annotation " + prefix + "rebuildImage": "l"}
	if got := requestsOf(c); got.describe() != want.describe() {
		t.Errorf("left are %s, want %s", got.describe(), want.describe())
	}
	if acceptedOf(c) != nil {
		t.Error("the acceptance is still there")
	}
}

func TestNames(t *testing.T) {
	c := testConfig()
	first := buildName(c, "rendered-worker-1")
	if first != buildName(c.DeepCopy(), "rendered-worker-1") {
		t.Error("the same inputs have two names")
	}
	other := c.DeepCopy()
	other.Spec.RenderedImagePushSecret.Name = "corrected"
	for name, changed := range map[string]string{"another MachineConfig": buildName(c, "rendered-worker-2"), "another spec": buildName(other, "rendered-worker-1")} {
		if changed == first || !strings.HasPrefix(changed, "worker-") {
			t.Errorf("%s: %s after %s", name, changed, first)
		}
	}
	long, longer := c.DeepCopy(), c.DeepCopy()
	long.Name, longer.Name = strings.Repeat("long.", 20)+"a", strings.Repeat("long.", 20)+"b"
	a, b := buildName(long, "m"), buildName(longer, "m")
	if a == b || len(jobName(a)) > 63 || len(labelValue(long.Name)) > 63 || labelValue(long.Name) == labelValue(longer.Name) {
		t.Errorf("long names: %s, %s, %s", a, b, labelValue(long.Name))
	}
}

func TestPushSpecs(t *testing.T) {
	for _, tt := range []struct {
		spec mcfgv1.ImageTagFormat
		ok   bool
	}{
		{"registry.example/os:latest", true},
		{"registry.example:5000/os/layered:latest", true},
		{"image-registry.openshift-image-registry.svc:5000/openshift-machine-config-operator/os:latest", true},
		{"registry.example/a/b/c:latest", false},
		{mcfgv1.ImageTagFormat("registry.example/" + strings.Repeat("n", 61) + "/" + strings.Repeat("x", 350) + ":latest"), false},
	} {
		c := testConfig()
		c.Spec.RenderedImagePushSpec = tt.spec
		if reason, message := checkPushSpec(c); (reason == "") != tt.ok || (reason != "" && !strings.Contains(message, string(tt.spec))) {
			t.Errorf("%.60s: %s %.80s", tt.spec, reason, message)
		}
	}
	c := testConfig()
	c.Spec.RenderedImagePushSpec = "registry.example:5000/os:latest"
	if got := pushSpec(c, "worker-1"); got != "registry.example:5000/os:worker-1" {
		t.Errorf("push spec %s", got)
	}
	if got := digested(pushSpec(c, "worker-1"), testDigest); string(got) != "registry.example:5000/os@"+testDigest {
		t.Errorf("digested %s", got)
	}
}
