package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/controller"
	"github.com/strata-build/strata/test/apiserver"
)

const (
	namespace = "openshift-machine-config-operator"
	group     = "machineconfiguration.openshift.io/"
	force     = group + "force-rebuild"
	digest    = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

var (
	server *apiserver.Server
	scheme *runtime.Scheme
	mapper meta.RESTMapper
	// admin is what tests look and act with.
	admin client.Client
)

func TestMain(m *testing.M) {
	quiet()
	os.Exit(apiserver.Main(m, &server, apiserver.Options{Controllers: true}))
}

// sharing makes, once, what all tests share.
var sharing = sync.OnceValue(func() error { return shared(context.Background()) })

func shared(ctx context.Context) (err error) {
	if scheme, err = controller.NewScheme(); err != nil {
		return err
	}
	http, err := rest.HTTPClientFor(server.Config)
	if err != nil {
		return err
	}
	if mapper, err = apiutil.NewDynamicRESTMapper(server.Config, http); err != nil {
		return err
	}
	if admin, err = client.New(server.Config, client.Options{Scheme: scheme, Mapper: mapper}); err != nil {
		return err
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "strata-build"}},
		dockerConfig("push"), dockerConfig("pull"), dockerConfig("global-pull-secret-copy"),
	} {
		if err := admin.Create(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func dockerConfig(name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"registry.example:5000":{"auth":"dXNlcjpwYXNz"}}}`)},
	}
}

// world is a pool with its MachineOSConfig, apart from those of other tests.
type world struct {
	testing.TB
	name string
	// drive lets a controller work; nil where one runs by itself.
	drive *controller.Reconciler
	// old is the build that was there when something began, pod its pod.
	old types.UID
	pod *corev1.Pod
	// wasRequested is set when a test has asked for a rebuild.
	wasRequested bool
}

var worlds atomic.Int64

// newWorld makes a pool with a rendered MachineConfig, and a config for it.
func newWorld(t testing.TB, changes ...func(*mcfgv1.MachineOSConfig)) *world {
	t.Helper()
	w := newPool(t)
	w.createConfig(changes...)
	return w
}

func newPool(t testing.TB) *world {
	t.Helper()
	if err := sharing(); err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, name: fmt.Sprintf("pool%d", worlds.Add(1))}
	w.createMachineConfig(w.rendered(1))
	pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: w.name}}
	pool.Spec.Configuration.Name = w.rendered(1)
	w.must(admin.Create(w.ctx(), pool))
	return w
}

// ctx outlives the test's own context, for what is looked at when it ends.
func (w *world) ctx() context.Context { return context.Background() }

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) rendered(n int) string { return fmt.Sprintf("rendered-%s-%d", w.name, n) }

func (w *world) createMachineConfig(name string, changes ...func(*mcfgv1.MachineConfig)) {
	w.Helper()
	mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: name}}
	mc.Spec.OSImageURL = "registry.example:5000/os/base@" + digest
	mc.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/containers/policy.json","contents":{"source":"data:,%7B%22default%22%3A%5B%7B%22type%22%3A%22insecureAcceptAnything%22%7D%5D%7D"}}]}}`)
	for _, change := range changes {
		change(mc)
	}
	w.must(admin.Create(w.ctx(), mc))
}

func (w *world) createConfig(changes ...func(*mcfgv1.MachineOSConfig)) {
	w.Helper()
	config := &mcfgv1.MachineOSConfig{
		ObjectMeta: metav1.ObjectMeta{Name: w.name},
		Spec: mcfgv1.MachineOSConfigSpec{
			MachineConfigPool:       mcfgv1.MachineConfigPoolReference{Name: w.name},
			ImageBuilder:            mcfgv1.MachineOSImageBuilder{ImageBuilderType: mcfgv1.JobBuilder},
			BaseImagePullSecret:     &mcfgv1.ImageSecretObjectReference{Name: "pull"},
			RenderedImagePushSecret: mcfgv1.ImageSecretObjectReference{Name: "push"},
			RenderedImagePushSpec:   "registry.example:5000/os/layered:latest",
			Containerfile:           []mcfgv1.MachineOSContainerfile{{ContainerfileArch: mcfgv1.NoArch, Content: "FROM configs AS final\nRUN true\n"}},
		},
	}
	for _, change := range changes {
		change(config)
	}
	w.must(admin.Create(w.ctx(), config))
}

// config, builds, jobs and pods are what is there now.
func (w *world) config() *mcfgv1.MachineOSConfig {
	w.Helper()
	var config mcfgv1.MachineOSConfig
	w.must(admin.Get(w.ctx(), client.ObjectKey{Name: w.name}, &config))
	return &config
}

func (w *world) builds() (found []mcfgv1.MachineOSBuild) {
	w.Helper()
	var list mcfgv1.MachineOSBuildList
	w.must(admin.List(w.ctx(), &list, client.MatchingLabels{group + "machine-os-config": w.name}))
	for _, b := range list.Items {
		if b.Spec.MachineOSConfig.Name == w.name {
			found = append(found, b)
		}
	}
	return found
}

// build is the only build.
func (w *world) build() *mcfgv1.MachineOSBuild {
	w.Helper()
	all := w.builds()
	if len(all) != 1 {
		w.Fatalf("%d builds, want 1", len(all))
	}
	return &all[0]
}

// only is the only build, or nil when there are none or several.
func (w *world) only() *mcfgv1.MachineOSBuild {
	w.Helper()
	if all := w.builds(); len(all) == 1 {
		return &all[0]
	}
	return nil
}

// requested tells whether a request to rebuild is on the config.
func (w *world) requested() bool {
	w.Helper()
	_, there := w.config().Annotations[force]
	return there
}

// render gives the pool another MachineConfig.
func (w *world) render(n int) {
	w.Helper()
	w.createMachineConfig(w.rendered(n))
	w.point(w.rendered(n))
}

// point lets the pool name a MachineConfig.
func (w *world) point(machineConfig string) {
	w.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"configuration":{"name":%q}}}`, machineConfig)
	w.must(admin.Patch(w.ctx(), &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: w.name}}, client.RawPatch(types.MergePatchType, patch)))
}

// nothingOf tells whether no object of a build is left.
func (w *world) nothingOf(build types.UID) bool {
	w.Helper()
	for _, list := range []client.ObjectList{&batchv1.JobList{}, &corev1.PodList{}, &corev1.ConfigMapList{}, &corev1.SecretList{}} {
		w.must(admin.List(w.ctx(), list, client.InNamespace(namespace), client.MatchingLabels{"strata.build/build-uid": string(build)}))
		if meta.LenList(list) > 0 {
			return false
		}
	}
	return true
}

// leave deletes what is left of a world, so that later tests list less.
func (w *world) leave() {
	w.Helper()
	ctx := w.ctx()
	_ = admin.Delete(ctx, &mcfgv1.MachineOSConfig{ObjectMeta: metav1.ObjectMeta{Name: w.name}})
	for _, b := range w.builds() {
		_ = admin.Delete(ctx, &b)
	}
	_ = admin.Delete(ctx, &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: w.name}})
}

func (w *world) list(list client.ObjectList) {
	w.Helper()
	w.must(admin.List(w.ctx(), list, client.InNamespace(namespace), client.MatchingLabels{group + "machine-os-config": w.name}))
}

func (w *world) jobs() []batchv1.Job {
	w.Helper()
	var list batchv1.JobList
	w.list(&list)
	return list.Items
}

func (w *world) pods() []corev1.Pod {
	w.Helper()
	var list corev1.PodList
	w.list(&list)
	return list.Items
}

func (w *world) configMaps() []corev1.ConfigMap {
	w.Helper()
	var list corev1.ConfigMapList
	w.list(&list)
	return list.Items
}

func (w *world) secrets() []corev1.Secret {
	w.Helper()
	var list corev1.SecretList
	w.list(&list)
	return list.Items
}

// until drives the controller, if this world has one to drive, until a condition
// holds, and fails when it does not within half a minute.
func (w *world) until(what string, holds func() bool) {
	w.Helper()
	var last error
	for deadline := time.Now().Add(time.Minute); ; {
		if w.drive != nil {
			_, last = w.drive.Reconcile(w.ctx(), ctrl.Request{NamespacedName: client.ObjectKey{Name: w.name}})
		}
		if holds() {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("not within a minute: %s (last error: %v)\n%s", what, last, w.dump())
		}
		<-time.After(40 * time.Millisecond)
	}
}

// dump is what an engineer wants to see of a world.
func (w *world) dump() string {
	var b strings.Builder
	show := func(kind string, o client.Object, status any) {
		text, _ := json.Marshal(status)
		fmt.Fprintf(&b, "%s %s uid=%s deleted=%v finalizers=%v annotations=%v\n  %s\n", kind, o.GetName(), o.GetUID(), o.GetDeletionTimestamp(), o.GetFinalizers(), o.GetAnnotations(), text)
	}
	var config mcfgv1.MachineOSConfig
	if admin.Get(w.ctx(), client.ObjectKey{Name: w.name}, &config) == nil {
		show("MachineOSConfig", &config, config.Status)
	}
	for _, o := range w.builds() {
		show("MachineOSBuild", &o, o.Status)
	}
	for _, o := range w.jobs() {
		show("Job", &o, o.Status)
	}
	for _, o := range w.pods() {
		show("Pod", &o, o.Status)
	}
	for _, o := range w.configMaps() {
		show("ConfigMap", &o, len(o.Data)+len(o.BinaryData))
	}
	return b.String()
}

// newReconciler is a controller without a cache, that works when it is driven: each
// of its calls can be counted.
func newReconciler(t testing.TB, config *rest.Config) *controller.Reconciler {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	m, err := controller.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return &controller.Reconciler{Options: options(), Client: c, Live: c, Recorder: events.NewFakeRecorder(10000), Metrics: m}
}

func options() controller.Options {
	o := controller.DefaultOptions()
	o.AgentImage = "registry.example:5000/strata:1"
	return o
}

// annotate sets an annotation of the config, or removes it.
func (w *world) annotate(key string, value *string) {
	w.Helper()
	w.wasRequested = w.wasRequested || key == force
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	w.must(err)
	w.must(admin.Patch(w.ctx(), &mcfgv1.MachineOSConfig{ObjectMeta: metav1.ObjectMeta{Name: w.name}}, client.RawPatch("application/merge-patch+json", patch)))
}

// runningPod waits for the pod of a Job and lets it run.
func (w *world) runningPod() *corev1.Pod {
	w.Helper()
	var pod *corev1.Pod
	w.until("the Job has a pod", func() bool {
		for _, p := range w.pods() {
			if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodPending {
				pod = &p
				return true
			}
		}
		return false
	})
	now := metav1.Now()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.StartTime = &now
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "build", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}}
	w.must(admin.Status().Update(w.ctx(), pod))
	return pod
}

// end ends a pod as the kubelet would, with the agent's result.
func (w *world) end(pod *corev1.Pod, r *result.Result) {
	w.Helper()
	w.exit(pod, int32(r.ExitCode), string(r.Encode(result.MaxBytes)))
}

func (w *world) exit(pod *corev1.Pod, code int32, message string) {
	w.Helper()
	pod.Status.Phase = corev1.PodFailed
	if code == 0 {
		pod.Status.Phase = corev1.PodSucceeded
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "build", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: code, Message: message, Reason: map[bool]string{true: "Completed", false: "Error"}[code == 0],
		StartedAt: *pod.Status.StartTime, FinishedAt: metav1.Now(),
	}}}}
	w.must(admin.Status().Update(w.ctx(), pod))
}

// resultOf is what an agent leaves.
func resultOf(reason result.Reason, changes ...func(*result.Result)) *result.Result {
	r := &result.Result{Image: "registry.example:5000/os/layered:x", Phase: result.Verify, StartedAt: time.Now(), FinishedAt: time.Now(), Message: "told by a test"}
	r.Conclude(reason)
	if reason == result.ReasonSucceeded {
		r.Digest = digest
	}
	for _, change := range changes {
		change(r)
	}
	return r
}

func condition(b *mcfgv1.MachineOSBuild, t mcfgv1.BuildProgress) metav1.Condition {
	if c := meta.FindStatusCondition(b.Status.Conditions, string(t)); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func is(b *mcfgv1.MachineOSBuild, t mcfgv1.BuildProgress) bool {
	return meta.IsStatusConditionTrue(b.Status.Conditions, string(t))
}

// isGone tells whether an object does not exist.
func (w *world) isGone(o client.Object) bool {
	err := admin.Get(w.ctx(), client.ObjectKeyFromObject(o), o)
	return apierrors.IsNotFound(err)
}

// building waits for a build whose pod works, and returns both.
func (w *world) building() (*mcfgv1.MachineOSBuild, *corev1.Pod) {
	w.Helper()
	pod := w.runningPod()
	w.until("the build is Building", func() bool {
		for _, b := range w.builds() {
			if is(&b, mcfgv1.MachineOSBuilding) {
				return true
			}
		}
		return false
	})
	for _, b := range w.builds() {
		if is(&b, mcfgv1.MachineOSBuilding) {
			return &b, pod
		}
	}
	return nil, pod
}

// failed waits for a first build and lets it fail.
func (w *world) failed() *mcfgv1.MachineOSBuild {
	w.Helper()
	_, pod := w.building()
	w.end(pod, resultOf(result.ReasonStepFailed, func(r *result.Result) { r.Phase = result.Build }))
	w.until("the build is Failed", func() bool { return is(w.build(), mcfgv1.MachineOSBuildFailed) })
	return w.build()
}

// succeeded waits for a first build and lets it succeed.
func (w *world) succeeded() *mcfgv1.MachineOSBuild {
	w.Helper()
	_, pod := w.building()
	w.end(pod, resultOf(result.ReasonSucceeded))
	w.until("the build is Succeeded", func() bool { return is(w.build(), mcfgv1.MachineOSBuildSucceeded) })
	w.until("its objects are gone", func() bool { return w.nothingLeft() })
	return w.build()
}

func (w *world) nothingLeft() bool {
	return len(w.jobs())+len(w.pods())+len(w.configMaps())+len(w.secrets()) == 0
}
