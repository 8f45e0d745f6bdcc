package cluster

import (
	"archive/tar"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/strata-build/strata/test/bases"
)

const (
	// registryUser is the one that run-node gives the registry.
	registryUser = "strata"
	// patience is for what takes seconds; a machine with other work to do needs more.
	patience = 3 * time.Minute
)

// The cluster under test.
var (
	dir      string // with kubeconfig and registry/
	client   kubernetes.Interface
	host     string // of the registry
	password string // of the registry
	ca       []byte // of the registry
	image    string // the agent's, on the node
)

func TestMain(m *testing.M) {
	if err := connect(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// connect finds the cluster that runs and gives it the agent's image.
func connect() error {
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	if dir = os.Getenv("CLUSTER_DIR"); dir == "" {
		dir = filepath.Join(root, "dist/cluster")
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return fmt.Errorf("no cluster runs (%w): run `make e2e`, or `make cluster-up` first", err)
	}
	if client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	node, err := client.CoreV1().Nodes().Get(context.Background(), "node1", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the cluster does not answer: %w", err)
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			host = a.Address + ":5000"
		}
	}
	secret, err := os.ReadFile(filepath.Join(dir, "registry/password"))
	if err != nil {
		return err
	}
	password = strings.TrimSpace(string(secret))
	if ca, err = os.ReadFile(filepath.Join(dir, "registry/ca.crt")); err != nil {
		return err
	}
	archive := filepath.Join(root, "dist/strata.tar")
	if image, err = nameInArchive(archive); err != nil {
		return fmt.Errorf("the image of the agent: %w: run `make image`", err)
	}
	if out, err := exec.Command("./cluster", "load", archive).CombinedOutput(); err != nil {
		return fmt.Errorf("loading %s: %w\n%s", archive, err, out)
	}
	return nil
}

// nameInArchive returns the name of the one image in an OCI archive.
func nameInArchive(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if err != nil {
			return "", fmt.Errorf("%s: looking for index.json: %w", path, err)
		}
		if header.Name != "index.json" {
			continue
		}
		var index v1.IndexManifest
		if err := json.NewDecoder(r).Decode(&index); err != nil {
			return "", err
		}
		if len(index.Manifests) != 1 {
			return "", fmt.Errorf("%s has %d images", path, len(index.Manifests))
		}
		return index.Manifests[0].Annotations["org.opencontainers.image.ref.name"], nil
	}
}

// onRegistry returns what bases needs to speak to the registry.
func onRegistry() []remote.Option {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return []remote.Option{
		remote.WithTransport(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}),
		remote.WithAuth(&authn.Basic{Username: registryUser, Password: password}),
	}
}

var pushBase sync.Once

// lab is a namespace with what a build needs: base/busy:1 in the registry, the
// Secret "registry" with a credential, and the ConfigMap "ca".
type lab struct {
	t         *testing.T
	namespace string
	// gate is a directory of the node that RUN steps can be given; see Open.
	gate string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	pushBase.Do(func() { bases.Push(t, host, "base/busy:1", bases.Busy(t), onRegistry()...) })
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, namespace: namespace.Name, gate: filepath.Join(t.TempDir(), "gate")}
	if err := os.Mkdir(l.gate, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(l.gate); strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // pods of other users look in
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			l.dump()
		}
		if err := client.CoreV1().Namespaces().Delete(context.Background(), l.namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	l.secret("registry", password)
	l.configMap("ca", "ca.crt", string(ca))
	return l
}

// authFile is what a Secret for the registry has.
func authFile(password string) map[string][]byte {
	data, err := json.Marshal(map[string]any{"auths": map[string]any{
		host: map[string]string{"username": registryUser, "password": password, "auth": ""},
	}})
	if err != nil {
		panic(err)
	}
	return map[string][]byte{corev1.DockerConfigJsonKey: data}
}

func (l *lab) secret(name, password string) {
	l.t.Helper()
	_, err := client.CoreV1().Secrets(l.namespace).Create(l.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeDockerConfigJson, Data: authFile(password),
	}, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) configMap(name, key, text string) {
	l.t.Helper()
	_, err := client.CoreV1().ConfigMaps(l.namespace).Create(l.t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{key: text},
	}, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
}

// await polls until the condition holds, and fails the test when it does not
// within patience.
func await(t *testing.T, what string, holds func(context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, patience, true, holds); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// dump prints what an engineer needs to understand a red test.
func (l *lab) dump() {
	kubectl := func(args ...string) {
		out, err := kubectlCommand(append(args, "--namespace", l.namespace)...).CombinedOutput()
		l.t.Logf("%s\n%s", strings.Join(args, " "), out)
		if err != nil {
			l.t.Logf("kubectl: %v", err)
		}
	}
	kubectl("get", "jobs,pods", "--output", "yaml")
	kubectl("get", "events", "--sort-by", ".lastTimestamp")
	pods, err := client.CoreV1().Pods(l.namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		l.t.Log(err)
		return
	}
	for _, pod := range pods.Items {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			l.t.Logf("log of %s in %s\n%s", c.Name, pod.Name, l.logOf(pod.Name, c.Name))
		}
	}
}

// log returns what a pod's only container has said so far, logOf one of several.
func (l *lab) log(pod string) string { return l.logOf(pod, "") }

func (l *lab) logOf(pod, container string) string {
	stream, err := client.CoreV1().Pods(l.namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container}).Stream(context.Background())
	if err != nil {
		return ""
	}
	defer stream.Close()
	text, err := io.ReadAll(stream)
	return string(text) + errorText(err)
}

func errorText(err error) string {
	if err == nil || errors.Is(err, io.EOF) {
		return ""
	}
	return err.Error()
}
