package apiserver

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var server *Server

func TestMain(m *testing.M) {
	os.Exit(Main(m, &server, Options{Controllers: true}))
}

func newClient(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, mcfgv1.Install} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(server.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, holds func(context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, holds); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func osConfig(pushSpec string) *mcfgv1.MachineOSConfig {
	return &mcfgv1.MachineOSConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "worker"},
		Spec: mcfgv1.MachineOSConfigSpec{
			MachineConfigPool:       mcfgv1.MachineConfigPoolReference{Name: "worker"},
			ImageBuilder:            mcfgv1.MachineOSImageBuilder{ImageBuilderType: mcfgv1.JobBuilder},
			RenderedImagePushSecret: mcfgv1.ImageSecretObjectReference{Name: "push"},
			RenderedImagePushSpec:   mcfgv1.ImageTagFormat(pushSpec),
			Containerfile:           []mcfgv1.MachineOSContainerfile{{ContainerfileArch: mcfgv1.NoArch, Content: "FROM configs AS final\n"}},
		},
	}
}

func TestValidationOfTheCRDs(t *testing.T) {
	c := newClient(t)
	err := c.Create(t.Context(), osConfig("no-registry"))
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "the OCI Image name should follow the host[:port][/namespace]/name format") {
		t.Errorf("a push spec without a registry: %v", err)
	}
	good := osConfig("registry.example:5000/os/worker:latest")
	if err := c.Create(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(context.Background(), good) })
	renamed := good.DeepCopy()
	renamed.ResourceVersion, renamed.Name = "", "other"
	if err := c.Create(t.Context(), renamed); !apierrors.IsInvalid(err) {
		t.Errorf("a config that is not named after its pool: %v", err)
	}
}

func TestStatusIsASubresource(t *testing.T) {
	c := newClient(t)
	build := &mcfgv1.MachineOSBuild{
		ObjectMeta: metav1.ObjectMeta{Name: "worker-0123456789abcdef0123456789abcdef"},
		Spec: mcfgv1.MachineOSBuildSpec{
			MachineConfig:         mcfgv1.MachineConfigReference{Name: "rendered-worker-1"},
			MachineOSConfig:       mcfgv1.MachineOSConfigReference{Name: "worker"},
			RenderedImagePushSpec: "registry.example:5000/os/worker:worker-0123",
		},
	}
	if err := c.Create(t.Context(), build); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(context.Background(), build) })
	condition := metav1.Condition{
		Type: string(mcfgv1.MachineOSBuildPrepared), Status: metav1.ConditionTrue, Reason: "Prepared", Message: "prepared",
		LastTransitionTime: metav1.Now(),
	}
	build.Status.Conditions = []metav1.Condition{condition}
	if err := c.Update(t.Context(), build.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	conditions := func() int {
		var now mcfgv1.MachineOSBuild
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(build), &now); err != nil {
			t.Fatal(err)
		}
		build.ResourceVersion = now.ResourceVersion
		return len(now.Status.Conditions)
	}
	if n := conditions(); n != 0 {
		t.Errorf("Update wrote %d conditions", n)
	}
	if err := c.Status().Update(t.Context(), build); err != nil {
		t.Fatal(err)
	}
	if n := conditions(); n != 1 {
		t.Errorf("Status().Update wrote %d conditions, want 1", n)
	}
}

func TestControllers(t *testing.T) {
	c := newClient(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "controllers-"}}
	if err := c.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "owner"}}
	if err := c.Create(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace.Name, Name: "build",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}},
		},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "agent", Image: "registry.example/agent:1"}},
		}}},
	}
	if err := c.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	var pods corev1.PodList
	podsAre := func(ctx context.Context, want int) (bool, error) {
		err := c.List(ctx, &pods, client.InNamespace(namespace.Name), client.MatchingLabels{batchv1.JobNameLabel: job.Name})
		return len(pods.Items) == want, err
	}
	eventually(t, "the Job gets its pod", func(ctx context.Context) (bool, error) { return podsAre(ctx, 1) })
	if account := pods.Items[0].Spec.ServiceAccountName; account != "default" {
		t.Errorf("the pod's service account is %q", account)
	}

	pod := pods.Items[0].DeepCopy()
	pod.Status.Phase = corev1.PodSucceeded
	if err := c.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Job completes with its pod", func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(job), job)
		return job.Status.Succeeded == 1 && job.Status.CompletionTime != nil, err
	})

	if err := c.Delete(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Job and pod go with their owner", func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(job), &batchv1.Job{})
		if !apierrors.IsNotFound(err) {
			return false, err
		}
		return podsAre(ctx, 0)
	})

	if err := c.Delete(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace goes", func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(namespace), namespace)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

func TestMissingBinaryIsNamed(t *testing.T) {
	t.Setenv(BinaryVariable, "/no/such/kube")
	_, err := New(Options{})
	if err == nil {
		t.Fatal("a server was started without a program")
	}
	for _, text := range []string{"/no/such/kube", "make kube", BinaryVariable} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
}

// TestWithoutControllers shows that a Job stays alone, and that a second server
// runs beside the first.
func TestWithoutControllers(t *testing.T) {
	bare := Start(t, Options{CRDs: []string{}})
	c, err := client.New(bare.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "registry.example/agent:1"}}},
	}
	if err := c.Create(t.Context(), pod); err != nil {
		t.Fatalf("a pod needs no service account: %v", err)
	}
	err = c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "default"}, &corev1.ServiceAccount{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("somebody made the service account: %v", err)
	}
}
