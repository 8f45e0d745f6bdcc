package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Options says what runs.
type Options struct {
	// Controllers adds kube-controller-manager with its controllers for Jobs
	// (and their TTL), garbage collection, namespaces and service accounts.
	Controllers bool
	// CRDs are files and directories with CustomResourceDefinitions; nil stands
	// for MachineConfigurationCRDs.
	CRDs []string
}

// Server is a running Kubernetes API.
type Server struct {
	// Config is the administrator's, without a limit on requests that matters.
	Config *rest.Config
	// Kubeconfig is a file that says the same.
	Kubeconfig string

	dir     string
	env     *envtest.Environment
	manager *exec.Cmd     // nil without Controllers
	ended   chan struct{} // closed when the manager has exited
}

const (
	// starting is how long one server may take to become ready: 3 to 6 seconds
	// are usual on 2 cores, and other tests run beside it.
	starting = 2 * time.Minute
	// stopping is how long one may take to end before it is killed.
	stopping = 30 * time.Second
	// endsWithParent makes test/kube end when the process that started it is gone.
	endsWithParent = "KUBE_ENDS_WITH_PARENT"
)

// controllers are those that Options.Controllers promises.
const controllers = "job-controller,ttl-after-finished-controller,garbage-collector-controller,namespace-controller,serviceaccount-controller"

// Main runs the tests of a package with a server, which it puts into *server and
// stops afterwards, and returns the exit code for TestMain.
func Main(m *testing.M, server **Server, o Options) int {
	s, err := New(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	*server = s
	code := m.Run()
	if err := s.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Start returns a server that stops when the test ends.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// New starts a server. The caller stops it.
func New(o Options) (*Server, error) {
	s := &Server{ended: make(chan struct{})}
	err := s.start(o)
	if err == nil {
		return s, nil
	}
	if s.dir != "" {
		err = fmt.Errorf("%w%s", err, s.logs())
	}
	return nil, fmt.Errorf("apiserver: %w", errors.Join(err, s.Stop()))
}

func (s *Server) start(o Options) (err error) {
	program, err := Binary()
	if err != nil {
		return err
	}
	if o.CRDs == nil {
		if o.CRDs, err = MachineConfigurationCRDs(); err != nil {
			return err
		}
	}
	if s.dir, err = os.MkdirTemp("", "strata-apiserver-"); err != nil {
		return err
	}
	// For etcd and kube-apiserver, which envtest gives this process's environment.
	if err := os.Setenv(endsWithParent, "1"); err != nil {
		return err
	}
	if err := s.startAPI(program, o); err != nil {
		return err
	}
	s.Kubeconfig = filepath.Join(s.dir, "kubeconfig")
	if err := os.WriteFile(s.Kubeconfig, s.env.KubeConfig, 0o600); err != nil {
		return err
	}
	if o.Controllers {
		return s.startManager(program)
	}
	return nil
}

func (s *Server) startAPI(program string, o Options) error {
	s.env = &envtest.Environment{
		CRDInstallOptions:        envtest.CRDInstallOptions{Paths: o.CRDs, ErrorIfPathMissing: true, MaxTime: starting},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: starting,
		ControlPlaneStopTimeout:  stopping,
	}
	etcd, api := &envtest.Etcd{}, &envtest.APIServer{}
	s.env.ControlPlane.Etcd, s.env.ControlPlane.APIServer = etcd, api
	var err error
	if etcd.Path, err = s.link(program, "etcd"); err != nil {
		return err
	}
	if api.Path, err = s.link(program, "kube-apiserver"); err != nil {
		return err
	}
	if etcd.DataDir, err = s.mkdir("data"); err != nil {
		return err
	}
	if api.CertDir, err = s.mkdir("certificates"); err != nil {
		return err
	}
	if etcd.Err, err = s.log("etcd"); err != nil {
		return err
	}
	if api.Err, err = s.log("kube-apiserver"); err != nil {
		return err
	}
	// The service "kubernetes" has no endpoint, because nothing runs that would
	// use it and a loopback address would be refused.
	api.Configure().Set("advertise-address", "127.0.0.1").Set("endpoint-reconciler-type", "none")
	if o.Controllers {
		api.Configure().Disable("disable-admission-plugins") // as a cluster: pods get service accounts
	}
	s.Config, err = s.env.Start()
	return err
}

func (s *Server) startManager(program string) error {
	path, err := s.link(program, "kube-controller-manager")
	if err != nil {
		return err
	}
	out, err := s.log("kube-controller-manager")
	if err != nil {
		return err
	}
	s.manager = exec.Command(path, "--kubeconfig", s.Kubeconfig, "--controllers", controllers, "--leader-elect=false", "--secure-port=0")
	s.manager.Stdout, s.manager.Stderr = out, out
	if err := s.manager.Start(); err != nil {
		s.manager = nil
		return err
	}
	go func() {
		defer close(s.ended)
		_ = s.manager.Wait() // Stop kills it; a crash is seen below and by the tests
	}()
	return s.awaitManager()
}

// awaitManager returns when the manager has done something: the namespace
// default has its service account.
func (s *Server) awaitManager() error {
	c, err := client.New(s.Config, client.Options{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), starting, fmt.Errorf("kube-controller-manager did nothing within %v", starting))
	defer cancel()
	go func() {
		select {
		case <-s.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	account := client.ObjectKey{Namespace: "default", Name: "default"}
	err = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, account, &corev1.ServiceAccount{})
		return err == nil, client.IgnoreNotFound(err)
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), context.Canceled):
		return errors.New("kube-controller-manager has ended")
	case apierrors.IsTimeout(err), ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// Stop ends the servers, waits for them, and removes their data.
func (s *Server) Stop() error {
	var failures []error
	if s.manager != nil {
		failures = append(failures, s.stopManager())
	}
	if s.env != nil {
		failures = append(failures, s.env.Stop())
	}
	if s.dir != "" {
		failures = append(failures, os.RemoveAll(s.dir))
	}
	return errors.Join(failures...)
}

func (s *Server) stopManager() error {
	if err := s.manager.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.ended:
		return nil
	case <-time.After(stopping):
	}
	err := s.manager.Process.Kill()
	<-s.ended
	return errors.Join(fmt.Errorf("kube-controller-manager did not end within %v", stopping), err)
}

// link makes the program known under the name of a component, which is how it
// learns which to run.
func (s *Server) link(program, component string) (string, error) {
	path := filepath.Join(s.dir, component)
	return path, os.Symlink(program, path)
}

func (s *Server) mkdir(name string) (string, error) {
	path := filepath.Join(s.dir, name)
	return path, os.Mkdir(path, 0o700)
}

// log opens the file for what a component says. It is closed with the process.
func (s *Server) log(component string) (*os.File, error) {
	return os.Create(filepath.Join(s.dir, component+".log"))
}

// logs returns the end of what each component said.
func (s *Server) logs() string {
	const last = 2000 // bytes
	var all bytes.Buffer
	paths, _ := filepath.Glob(filepath.Join(s.dir, "*.log")) // the pattern is well-formed
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(&all, "\n%s:\n%s", filepath.Base(path), text[max(0, len(text)-last):])
	}
	return all.String()
}
