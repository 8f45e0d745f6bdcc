package controller

import (
	"context"
	"errors"
	"net/http"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Reconciler works on MachineOSConfigs.
type Reconciler struct {
	Options
	// Client reads from a cache and writes to the API server.
	Client client.Client
	// Live reads from the API server.
	Live     client.Reader
	Recorder events.EventRecorder
	Metrics  *Metrics
	// Now is the clock; nil stands for time.Now.
	Now func() time.Time
}

var _ reconcile.Reconciler = (*Reconciler)(nil)

const (
	// soon is when to look again after another writer was faster.
	soon = 200 * time.Millisecond
	// later is when to look again where something is waited for. Changes are seen by
	// watches; this is for what is not watched, such as a quota or a ControllerConfig.
	later = time.Minute
	// maxBackoff bounds the wait after errors.
	maxBackoff = time.Minute
)

// Reconcile brings one MachineOSConfig further. Its name is enough: also one that
// is gone has builds to clear away.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	s, err := r.observe(ctx, request.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	waits, err := r.apply(ctx, s, decide(s))
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		ctrl.LoggerFrom(ctx).V(1).Info("what was read is not the newest, looking again", "because", err.Error())
		return ctrl.Result{RequeueAfter: soon}, nil
	case err != nil:
		return ctrl.Result{}, err
	case waits:
		return ctrl.Result{RequeueAfter: later}, nil
	}
	return ctrl.Result{}, nil
}

// NewScheme knows the kinds that the controller works with.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, mcfgv1.Install} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

// CacheOptions keep the memory small: Jobs, pods and ConfigMaps of builds alone,
// ConfigMaps and Secrets without their contents, and nothing of who wrote what.
func CacheOptions(namespace string) cache.Options {
	ofBuilds, err := labels.NewRequirement(labelEphemeral, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	in := map[string]cache.Config{namespace: {}}
	selected := cache.ByObject{Namespaces: in, Label: labels.NewSelector().Add(*ofBuilds)}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&batchv1.Job{}:      selected,
			&corev1.Pod{}:       selected,
			&corev1.ConfigMap{}: selected,
			&corev1.Secret{}:    {Namespaces: in},
		},
	}
}

// SetupWithManager lets the manager call the reconciler whenever something changes
// that a decision is made of.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, workers int) error {
	ofObject := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return requestFor(configOf(o))
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("machineosconfig").
		For(&mcfgv1.MachineOSConfig{}).
		Watches(&mcfgv1.MachineOSBuild{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return requestFor(o.(*mcfgv1.MachineOSBuild).Spec.MachineOSConfig.Name)
		})).
		Watches(&batchv1.Job{}, ofObject).
		Watches(&corev1.Pod{}, ofObject).
		Watches(&corev1.ConfigMap{}, ofObject, builder.OnlyMetadata).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.forSecret), builder.OnlyMetadata).
		Watches(&mcfgv1.MachineConfigPool{}, handler.EnqueueRequestsFromMapFunc(r.forPool)).
		Watches(&mcfgv1.MachineConfig{}, handler.EnqueueRequestsFromMapFunc(r.forMachineConfig), builder.OnlyMetadata).
		WithOptions(ctrlcontroller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](soon, maxBackoff),
		}).
		Complete(r)
}

func requestFor(name string) []reconcile.Request {
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: name}}}
}

// forConfigs asks for the configs of which want is true.
func (r *Reconciler) forConfigs(ctx context.Context, want func(*mcfgv1.MachineOSConfig) bool) (found []reconcile.Request) {
	var configs mcfgv1.MachineOSConfigList
	if err := r.Client.List(ctx, &configs); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot list MachineOSConfigs")
		return nil
	}
	for i := range configs.Items {
		if want(&configs.Items[i]) {
			found = append(found, requestFor(configs.Items[i].Name)...)
		}
	}
	return found
}

func (r *Reconciler) forPool(ctx context.Context, o client.Object) []reconcile.Request {
	return r.forConfigs(ctx, func(c *mcfgv1.MachineOSConfig) bool { return c.Spec.MachineConfigPool.Name == o.GetName() })
}

// forSecret asks for the configs that name a secret, or of whose build it is.
func (r *Reconciler) forSecret(ctx context.Context, o client.Object) []reconcile.Request {
	if name := configOf(o); name != "" {
		return requestFor(name)
	}
	return r.forConfigs(ctx, func(c *mcfgv1.MachineOSConfig) bool {
		pull := c.Spec.BaseImagePullSecret
		return c.Spec.RenderedImagePushSecret.Name == o.GetName() ||
			(pull != nil && pull.Name == o.GetName()) || (pull == nil && o.GetName() == r.DefaultPullSecret)
	})
}

// forMachineConfig asks for the configs with a build of a rendered MachineConfig
// that has not ended.
func (r *Reconciler) forMachineConfig(ctx context.Context, o client.Object) (found []reconcile.Request) {
	var builds mcfgv1.MachineOSBuildList
	if err := r.Client.List(ctx, &builds, client.MatchingLabels{labelMachineConfig: labelValue(o.GetName())}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot list MachineOSBuilds")
		return nil
	}
	for i := range builds.Items {
		if ended(&builds.Items[i]) == "" {
			found = append(found, requestFor(builds.Items[i].Spec.MachineOSConfig.Name)...)
		}
	}
	return found
}

// Add makes the reconciler part of a manager, with its events and metrics.
func Add(mgr ctrl.Manager, o Options, registry prometheus.Registerer, workers int) error {
	m, err := NewMetrics(registry)
	if err != nil {
		return err
	}
	if err := registry.Register(&Collector{Client: mgr.GetClient()}); err != nil {
		return err
	}
	r := &Reconciler{Options: o, Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("strata-controller"), Metrics: m}
	return r.SetupWithManager(mgr, workers)
}

// Ready tells whether the caches are filled, which they are in a replica that only
// waits to be the leader too.
func Ready(mgr ctrl.Manager) func(*http.Request) error {
	return func(request *http.Request) error {
		ctx, cancel := context.WithTimeout(request.Context(), time.Second)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the caches are not filled yet")
		}
		return nil
	}
}
