package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	runtimeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

const (
	operatorNamespace = "openshift-machine-config-operator"
	group             = "machineconfiguration.openshift.io/"
	force             = group + "force-rebuild"
)

// admin acts on the kinds of OpenShift.
var admin runtimeclient.WithWatch

// operated makes the cluster, once, one that an admin has prepared: the controller
// from its own manifests, what OpenShift has in its namespace, and an image of an
// operating system.
var operated = sync.OnceValue(func() error {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), mcfgv1.Install(scheme)); err != nil {
		return err
	}
	log.SetLogger(logr.Discard()) // of controller-runtime's client
	if admin, err = runtimeclient.NewWithWatch(config, runtimeclient.Options{Scheme: scheme}); err != nil {
		return err
	}
	// An earlier one may have another program under the same name.
	if err := runKubectl(nil, "delete", "deployment", "strata-controller", "--namespace", operatorNamespace, "--ignore-not-found"); err != nil {
		return err
	}
	manifests, err := exec.Command("../../bin/controller", "manifests", "--image", image, "--create-namespace").Output()
	if err != nil {
		return fmt.Errorf("controller manifests: %w", err)
	}
	if err := runKubectl(manifests, "apply", "-f", "-"); err != nil {
		return err
	}
	if err := runKubectl([]byte(controllerConfig()), "apply", "-f", "-"); err != nil {
		return err
	}
	ctx := context.Background()
	pull := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: "global-pull-secret-copy"},
		Type:       corev1.SecretTypeDockerConfigJson, Data: authFile(password),
	}
	if err := admin.Create(ctx, pull); apierrors.IsAlreadyExists(err) {
		err = admin.Update(ctx, pull)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return runKubectl(nil, "rollout", "status", "deployment/strata-controller", "--namespace", operatorNamespace, "--timeout", patience.String())
})

// controllerConfig is what a cluster says of itself, as far as builds ask: the
// authorities that its admin trusts.
func controllerConfig() string {
	return fmt.Sprintf(`
apiVersion: machineconfiguration.openshift.io/v1
kind: ControllerConfig
metadata: {name: machine-config-controller}
spec:
  additionalTrustBundle: %q
  baseOSContainerImage: ""
  cloudProviderCAData: AA==
  cloudProviderConfig: ""
  clusterDNSIP: ""
  dns: {apiVersion: config.openshift.io/v1, kind: DNS, spec: {}}
  images: {}
  infra: {apiVersion: config.openshift.io/v1, kind: Infrastructure, spec: {cloudConfig: {}, platformSpec: {}}}
  ipFamilies: IPv4
  kubeAPIServerServingCAData: AA==
  network: {mtuMigration: {}}
  proxy: {}
  releaseImage: ""
  rootCAData: AA==
`, base64.StdEncoding.EncodeToString(ca))
}

var pushOS sync.Once

// osImage is the base of examples/pool, in the registry.
func osImage(t *testing.T) string {
	t.Helper()
	const name = "os/stand-in:1"
	pushOS.Do(func() {
		script := func(path string) bases.Entry {
			text, err := os.ReadFile("../../examples/pool/base/" + filepath.Base(path))
			if err != nil {
				t.Fatal(err)
			}
			return bases.Regular(path, 0o755, text)
		}
		bases.Push(t, host, name, bases.Append(t, bases.Busy(t),
			bases.Dir("/usr", 0o755), bases.Dir("/usr/bin", 0o755), bases.Dir("/usr/share", 0o755),
			script("/usr/lib/dracut/modules.d/30ignition/ignition"), script("/usr/bin/jq"), script("/usr/bin/ostree"), script("/usr/bin/update-ca-trust"),
		), onRegistry()...)
	})
	return host + "/" + name
}

// pool is a MachineConfigPool with a rendered MachineConfig and a MachineOSConfig.
type pool struct {
	*testing.T
	name string
}

// newPool makes a pool whose image has what a Containerfile says; change may say
// more of its MachineOSConfig. GATE in it is the command that waits at the pool's gate.
func newPool(t *testing.T, containerfile []string, changes ...func(*mcfgv1.MachineOSConfig)) *pool {
	t.Helper()
	if err := operated(); err != nil {
		t.Fatal(err)
	}
	p := &pool{t, "pool-" + rand.String(5)}
	t.Cleanup(p.leave)
	rendered := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: "rendered-" + p.name}}
	rendered.Spec.OSImageURL = osImage(t)
	rendered.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.4.0"}}`)
	p.must(admin.Create(t.Context(), rendered))
	of := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
	of.Spec.Configuration.Name = rendered.Name
	p.must(admin.Create(t.Context(), of))
	p.pushSecret(password)
	config := &mcfgv1.MachineOSConfig{
		ObjectMeta: metav1.ObjectMeta{Name: p.name},
		Spec: mcfgv1.MachineOSConfigSpec{
			MachineConfigPool:       mcfgv1.MachineConfigPoolReference{Name: p.name},
			ImageBuilder:            mcfgv1.MachineOSImageBuilder{ImageBuilderType: mcfgv1.JobBuilder},
			RenderedImagePushSecret: mcfgv1.ImageSecretObjectReference{Name: p.name},
			RenderedImagePushSpec:   mcfgv1.ImageTagFormat(host + "/os/" + p.name + ":latest"),
			Containerfile: []mcfgv1.MachineOSContainerfile{{
				ContainerfileArch: mcfgv1.NoArch,
				Content:           strings.ReplaceAll(strings.Join(containerfile, "\n")+"\n", "GATE", waitAt(t, p.name)),
			}},
		},
	}
	for _, change := range changes {
		change(config)
	}
	p.must(admin.Create(t.Context(), config))
	return p
}

// buildPod sets the annotation with the settings of build pods.
func buildPod(settings string) func(*mcfgv1.MachineOSConfig) {
	return func(config *mcfgv1.MachineOSConfig) {
		metav1.SetMetaDataAnnotation(&config.ObjectMeta, "strata.build/build-pod", settings)
	}
}

// pushSecret makes or changes the Secret that the config pushes with.
func (p *pool) pushSecret(password string) {
	p.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: p.name},
		Type:       corev1.SecretTypeDockerConfigJson, Data: authFile(password),
	}
	err := admin.Create(p.Context(), secret)
	if apierrors.IsAlreadyExists(err) {
		err = admin.Update(p.Context(), secret)
	}
	p.must(err)
}

func (p *pool) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// leave removes the pool, and shows it first when the test has failed.
func (p *pool) leave() {
	if p.Failed() {
		p.dump()
	}
	ctx := context.Background()
	for _, o := range []runtimeclient.Object{
		&mcfgv1.MachineOSConfig{ObjectMeta: metav1.ObjectMeta{Name: p.name}},
		&mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: p.name}},
		&mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: "rendered-" + p.name}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: p.name}},
	} {
		if err := admin.Delete(ctx, o); runtimeclient.IgnoreNotFound(err) != nil {
			p.Error(err)
		}
	}
}

// dump prints what an engineer needs to understand a red test.
func (p *pool) dump() {
	show := func(args ...string) {
		out, err := kubectlCommand(args...).CombinedOutput()
		p.Logf("kubectl %s (%v)\n%s", strings.Join(args, " "), err, out)
	}
	selector := "--selector=" + group + "machine-os-config=" + p.name
	show("get", "machineosconfig", p.name, "--output=yaml")
	show("get", "machineosbuilds", selector, "--output=yaml")
	show("get", "jobs,pods,configmaps", "--namespace="+operatorNamespace, selector, "--output=yaml")
	show("get", "events", "--namespace="+operatorNamespace, "--sort-by=.lastTimestamp")
	for _, pod := range p.pods() {
		show("logs", pod.Name, "--namespace="+operatorNamespace)
	}
	show("logs", "--selector=app=strata-controller", "--namespace="+operatorNamespace, "--tail=200")
}

func (p *pool) config() *mcfgv1.MachineOSConfig {
	p.Helper()
	var config mcfgv1.MachineOSConfig
	p.must(admin.Get(p.Context(), runtimeclient.ObjectKey{Name: p.name}, &config))
	return &config
}

// list fills a list with what is there of the pool's builds.
func (p *pool) list(list runtimeclient.ObjectList) int {
	p.Helper()
	err := admin.List(context.Background(), list, runtimeclient.MatchingLabels{group + "machine-os-config": p.name})
	if err != nil { // the API server may be down, which some tests see to
		return -1
	}
	return meta.LenList(list)
}

func (p *pool) pods() []corev1.Pod {
	p.Helper()
	var pods corev1.PodList
	p.list(&pods)
	return pods.Items
}

// pod is the only pod.
func (p *pool) pod() *corev1.Pod {
	p.Helper()
	pods := p.pods()
	if len(pods) != 1 {
		p.Fatalf("%d pods, want 1", len(pods))
	}
	return &pods[0]
}

func (p *pool) jobs() []batchv1.Job {
	p.Helper()
	var jobs batchv1.JobList
	p.list(&jobs)
	return jobs.Items
}

// until waits until something holds of the only build, and returns the build.
func (p *pool) until(what string, holds func(*mcfgv1.MachineOSBuild) bool) *mcfgv1.MachineOSBuild {
	p.Helper()
	var build *mcfgv1.MachineOSBuild
	await(p.T, what, func(context.Context) (bool, error) {
		var builds mcfgv1.MachineOSBuildList
		if p.list(&builds) != 1 {
			return false, nil
		}
		build = &builds.Items[0]
		return holds(build), nil
	})
	return build
}

// isTrue tells whether a condition of a build holds.
func isTrue(b *mcfgv1.MachineOSBuild, t mcfgv1.BuildProgress) bool {
	return meta.IsStatusConditionTrue(b.Status.Conditions, string(t))
}

// failed waits until the build has failed, and checks that the config says why, too.
func (p *pool) failed() (*mcfgv1.MachineOSBuild, metav1.Condition) {
	p.Helper()
	b := p.until("the build is Failed", func(b *mcfgv1.MachineOSBuild) bool { return isTrue(b, mcfgv1.MachineOSBuildFailed) })
	c := meta.FindStatusCondition(b.Status.Conditions, string(mcfgv1.MachineOSBuildFailed))
	await(p.T, "the config says why", func(context.Context) (bool, error) {
		ready := meta.FindStatusCondition(p.config().Status.Conditions, "ImageReady")
		return ready != nil && ready.Status == metav1.ConditionFalse && ready.Reason == c.Reason && ready.Message == c.Message, nil
	})
	return b, *c
}

// waits waits until the build waits for a reason, and returns the sentence that
// goes with it.
func (p *pool) waits(reason string) (message string) {
	p.Helper()
	p.until("the build waits for "+reason, func(b *mcfgv1.MachineOSBuild) bool {
		c := meta.FindStatusCondition(b.Status.Conditions, string(mcfgv1.MachineOSBuilding))
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason {
			return false
		}
		message = c.Message
		return true
	})
	return message
}

// succeeded waits for the image, and checks that everything agrees about it: the
// registry, both statuses, and that nothing is left of the build.
func (p *pool) succeeded() *mcfgv1.MachineOSBuild {
	p.Helper()
	b := p.until("the build is Succeeded", func(b *mcfgv1.MachineOSBuild) bool {
		if isTrue(b, mcfgv1.MachineOSBuildFailed) {
			p.Fatalf("the build failed: %+v", b.Status.Conditions)
		}
		return isTrue(b, mcfgv1.MachineOSBuildSucceeded)
	})
	want := host + "/os/" + p.name + "@" + bases.Digest(p.T, p.image(b))
	if got := string(b.Status.DigestedImagePushSpec); got != want {
		p.Errorf("the build's digestedImagePushSpec is %q, the registry has %q", got, want)
	}
	await(p.T, "the config knows the image", func(context.Context) (bool, error) {
		config := p.config()
		return string(config.Status.CurrentImagePullSpec) == want && meta.IsStatusConditionTrue(config.Status.Conditions, "ImageReady"), nil
	})
	await(p.T, "the objects of the build are gone", func(context.Context) (bool, error) { return p.nothingLeft(), nil })
	return b
}

// image is what the registry has of a build.
func (p *pool) image(b *mcfgv1.MachineOSBuild) v1.Image {
	p.Helper()
	return bases.Pull(p.T, host, strings.TrimPrefix(string(b.Spec.RenderedImagePushSpec), host+"/"), onRegistry()...)
}

// pushed tells whether the registry has the image of a build.
func (p *pool) pushed(b *mcfgv1.MachineOSBuild) bool {
	p.Helper()
	ref, err := name.ParseReference(string(b.Spec.RenderedImagePushSpec))
	p.must(err)
	_, err = remote.Head(ref, onRegistry()...)
	return err == nil
}

// nothingLeft tells whether the builds of the pool have no object any more.
func (p *pool) nothingLeft() bool {
	p.Helper()
	for _, list := range []runtimeclient.ObjectList{&batchv1.JobList{}, &corev1.PodList{}, &corev1.ConfigMapList{}, &corev1.SecretList{}} {
		if p.list(list) != 0 {
			return false
		}
	}
	return true
}

// forceRebuild asks for a rebuild.
func (p *pool) forceRebuild() {
	p.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, force, time.Now().Format(time.RFC3339Nano))
	p.must(admin.Patch(p.Context(), &mcfgv1.MachineOSConfig{ObjectMeta: metav1.ObjectMeta{Name: p.name}}, runtimeclient.RawPatch(types.MergePatchType, patch)))
}

// rebuilt waits until another build than old is there and the request is gone.
func (p *pool) rebuilt(old types.UID) *mcfgv1.MachineOSBuild {
	p.Helper()
	b := p.until("there is a new build", func(b *mcfgv1.MachineOSBuild) bool { return b.UID != old })
	await(p.T, "the request is gone", func(context.Context) (bool, error) {
		_, there := p.config().Annotations[force]
		return !there, nil
	})
	return b
}

// log returns what the container of a build pod has said.
func (p *pool) log(pod *corev1.Pod) string {
	return (&lab{t: p.T, namespace: operatorNamespace}).log(pod.Name)
}

// result is what the agent left in a pod.
func (p *pool) result(pod *corev1.Pod) *result.Result {
	p.Helper()
	_, r := (&lab{t: p.T, namespace: operatorNamespace}).left(pod)
	if r == nil {
		p.Fatalf("pod %s left no result", pod.Name)
	}
	return r
}

func kubectlCommand(args ...string) *exec.Cmd {
	return exec.Command("../../bin/kube", append([]string{"kubectl", "--kubeconfig", filepath.Join(dir, "kubeconfig")}, args...)...)
}

func runKubectl(input []byte, args ...string) error {
	cmd := kubectlCommand(args...)
	cmd.Stdin = bytes.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
