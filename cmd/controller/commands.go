package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/strata-build/strata/controller"
	"github.com/strata-build/strata/controller/manifests"
)

// version is set when the program is linked.
var version = "devel"

// running are the settings of the process, beside those of the controller.
type running struct {
	metrics, probes, logFormat string
	verbose, elect             bool
	workers                    int
}

func newCommand() *cobra.Command {
	options, run, buildPod := controller.DefaultOptions(), running{}, ""
	c := &cobra.Command{
		Use:           "controller",
		Short:         "Build the operating system images that MachineOSConfigs describe",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if options.BuildPod, err = controller.ParseBuildPod(buildPod, options.BuildPod); err != nil {
				return fmt.Errorf("--build-pod cannot be used: %w", err)
			}
			if err := options.Validate(); err != nil {
				return err
			}
			return run.start(cmd, options)
		},
	}
	f := c.Flags()
	f.StringVar(&options.Namespace, "namespace", options.Namespace, "`namespace` in which builds run and secrets are")
	f.StringVar(&options.AgentImage, "agent-image", "", "`image` of the agent, which is the one of this program")
	f.StringVar(&options.BuildServiceAccount, "build-service-account", options.BuildServiceAccount, "`name` of the ServiceAccount of build pods; it needs no rights")
	f.StringVar(&options.DefaultPullSecret, "default-pull-secret", options.DefaultPullSecret, "`name` of the pull secret where a MachineOSConfig names none")
	f.StringVar(&options.Architecture, "architecture", options.Architecture, "`architecture` of the nodes, as Go spells it (amd64, arm64, ppc64le, s390x)")
	f.StringVar((*string)(&options.Privilege), "build-privilege", string(options.Privilege), "`mode` of build pods: userns, nested, host or privileged")
	f.StringVar(&buildPod, "build-pod", "", "settings of all build pods as `YAML`, such as {nodeSelector: {pool: build}}; a MachineOSConfig overrides them in its annotation strata.build/build-pod")
	f.IntVar(&options.MaxRetries, "max-retries", options.MaxRetries, "`attempts` in all that the agent makes for each of pull, build, push and verify")
	f.BoolVar(&run.elect, "leader-elect", true, "work only while this replica is the leader")
	f.IntVar(&run.workers, "workers", 10, "`number` of MachineOSConfigs that are worked on at the same time")
	f.StringVar(&run.metrics, "metrics-address", ":8080", "`address` of the metrics; 0 for none")
	f.StringVar(&run.probes, "probe-address", ":8081", "`address` of the probes /healthz and /readyz; 0 for none")
	f.StringVar(&run.logFormat, "log-format", "json", "`format` of the log on standard error: text or json")
	f.BoolVar(&run.verbose, "verbose", false, "log every decision")
	f.AddFlag(pflag.PFlagFromGoFlag(flag.CommandLine.Lookup(config.KubeconfigFlagName)))
	c.AddCommand(newManifests(), newDocs(), &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
			return err
		},
	})
	return c
}

// start runs until a signal.
func (run *running) start(cmd *cobra.Command, options controller.Options) error {
	level := slog.LevelInfo
	if run.verbose {
		level = slog.LevelDebug
	}
	var logs slog.Handler = slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	if run.logFormat == "text" {
		logs = slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	}
	ctrl.SetLogger(logr.FromSlogHandler(logs))
	klog.SetLogger(logr.FromSlogHandler(logs))

	rest, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("no cluster is known, neither by --kubeconfig nor by KUBECONFIG nor from inside of a pod: %w", err)
	}
	rest.QPS = -1 // the API server has priorities and fairness of its own
	rest.UserAgent = "strata-controller/" + version
	scheme, err := controller.NewScheme()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(rest, manager.Options{
		Scheme:                        scheme,
		Cache:                         controller.CacheOptions(options.Namespace),
		Metrics:                       server.Options{BindAddress: run.metrics},
		HealthProbeBindAddress:        run.probes,
		LeaderElection:                run.elect,
		LeaderElectionID:              "strata-controller",
		LeaderElectionNamespace:       options.Namespace,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	if err := controller.Add(mgr, options, metrics.Registry, run.workers); err != nil {
		return err
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("caches", controller.Ready(mgr))); err != nil {
		return err
	}
	slog.New(logs).Info("starting", "version", version, "namespace", options.Namespace, "agentImage", options.AgentImage,
		"privilege", options.Privilege, "architecture", options.Architecture)
	return mgr.Start(cmd.Context())
}

func newManifests() *cobra.Command {
	defaults := controller.DefaultOptions()
	s := manifests.Settings{Privilege: defaults.Privilege}
	c := &cobra.Command{
		Use:   "manifests",
		Short: "Print what a cluster needs to run the controller, for kubectl apply",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := defaults
			o.AgentImage, o.Privilege = s.Image, s.Privilege
			if s.Image == "" {
				return errors.New("--image is not set: name the image of the controller and the agent, with its registry")
			}
			if err := o.Validate(); err != nil {
				return err
			}
			return manifests.Write(cmd.OutOrStdout(), s)
		},
	}
	f := c.Flags()
	f.StringVar(&s.Image, "image", "", "`image` of the controller and the agent")
	f.StringVar(&s.Namespace, "namespace", defaults.Namespace, "`namespace` to install into")
	f.StringVar(&s.BuildServiceAccount, "build-service-account", defaults.BuildServiceAccount, "`name` of the ServiceAccount of build pods")
	f.StringVar((*string)(&s.Privilege), "build-privilege", string(defaults.Privilege), "`mode` of build pods: userns, nested, host or privileged")
	f.IntVar(&s.Replicas, "replicas", 2, "`number` of controllers, of which one works")
	f.BoolVar(&s.CreateNamespace, "create-namespace", false, "print the namespace too")
	f.BoolVar(&s.SCC, "openshift", false, "print the SecurityContextConstraints that OpenShift wants for build pods, and leave the controller's user to it")
	f.BoolVar(&s.PodMonitor, "pod-monitor", false, "print a PodMonitor for the Prometheus operator, and the NetworkPolicy that lets it in")
	return c
}

func newDocs() *cobra.Command {
	return &cobra.Command{
		Use: "docs conditions", Short: "Print a page of docs/", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] != "conditions" {
				return fmt.Errorf("there is no page %q: use conditions", args[0])
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), controller.Conditions())
			return err
		},
	}
}
