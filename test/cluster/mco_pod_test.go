package cluster

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"os"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

// Names of a build as the Machine Config Operator makes them.
const (
	mcoConfig   = "worker"
	mcoRendered = "rendered-worker-0123456789abcdef0123456789abcdef"
	mcoBuild    = mcoConfig + "-fedcba9876543210fedcba9876543210"
)

// mcoAgent is the agent's image in the registry: the operator's pod always pulls.
const mcoAgent = "e2e/agent:mco"

var pushAgent sync.Once

// mcoImage is the agent's image with an id of its own: once the kubelet has pulled an id
// with a credential, it wants one of every pod that names the id, the image that was
// loaded onto the node included.
func mcoImage(t *testing.T) v1.Image {
	return bases.Configure(t, agentImage(t), func(c *v1.ConfigFile) { c.Author = mcoAgent })
}

// mcoJob starts the Job of testdata/mco-job.yaml with all that it mounts, as the operator
// makes it. The account of the pods has what a node of OpenShift has: the credential to pull.
// HOST in the Containerfile stands for the registry.
func (l *lab) mcoJob(containerfile []string, optional map[string]string, options ...option) *batchv1.Job {
	l.t.Helper()
	pushAgent.Do(func() { bases.Push(l.t, host, mcoAgent, mcoImage(l.t), onRegistry()...) })
	if _, err := client.CoreV1().ServiceAccounts(l.namespace).Create(l.t.Context(), &corev1.ServiceAccount{
		ObjectMeta:       metav1.ObjectMeta{Name: "machine-os-builder"},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
	}, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	l.configMap("containerfile-"+mcoBuild, "Containerfile", strings.ReplaceAll(strings.Join(containerfile, "\n")+"\n", "HOST", host))
	l.configMap("mc-"+mcoBuild, "machineconfig.json.gz", packed(l.t, mcoMachineConfig))
	l.configMap("additionaltrustbundle-"+mcoBuild, "openshift-config-user-ca-bundle.crt", string(ca))
	for key, text := range optional {
		name, _, _ := strings.Cut(key, ".")
		l.configMap("etc-"+name+"-"+mcoBuild, key, text)
	}
	l.secret("base-"+mcoBuild, password)
	l.secret("final-"+mcoBuild, password)
	l.configMap("etc-yum-repos-d", "own.repo", "[own]\n")
	for name, data := range map[string]string{"etc-pki-entitlement-" + mcoConfig: "entitlement.pem", "etc-pki-rpm-gpg": "KEY"} {
		if _, err := client.CoreV1().Secrets(l.namespace).Create(l.t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{data: "of " + data + "\n"},
		}, metav1.CreateOptions{}); err != nil {
			l.t.Fatal(err)
		}
	}
	text, err := os.ReadFile("testdata/mco-job.yaml")
	if err != nil {
		l.t.Fatal(err)
	}
	var job batchv1.Job
	if err := yaml.UnmarshalStrict([]byte(strings.NewReplacer(
		"<RENDERED>", mcoRendered, "<BUILD>", mcoBuild, "<CONFIG>", mcoConfig, "<TAG>", host+"/"+l.mcoTag(),
		"<BASE>", host+"/base/busy:1", "<AGENT>", host+"/"+mcoAgent, "<BUSY>", host+"/base/busy:1",
	).Replace(string(text))), &job); err != nil {
		l.t.Fatal(err)
	}
	for _, change := range options {
		change(&job)
	}
	created, err := client.BatchV1().Jobs(l.namespace).Create(l.t.Context(), &job, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	return created
}

// mcoTag is where the Job pushes: one repository for each test.
func (l *lab) mcoTag() string { return "os/" + l.namespace + ":" + mcoBuild }

const mcoMachineConfig = `{"metadata":{"name":"` + mcoRendered + `"},"spec":{"config":{"ignition":{"version":"3.4.0"}}}}`

// packed is a text as the operator puts it into a ConfigMap.
func packed(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// builtBy waits until the init container of the Job's first pod has ended, and returns the
// pod and the result that it left.
func (l *lab) builtBy(job string) (*corev1.Pod, *result.Result) {
	l.t.Helper()
	var p corev1.Pod
	await(l.t, "the first pod of "+job+" has built", func(context.Context) (bool, error) {
		pods := l.pods(job)
		if len(pods) == 0 {
			return false, nil
		}
		p = pods[0]
		return len(p.Status.InitContainerStatuses) == 1 && p.Status.InitContainerStatuses[0].State.Terminated != nil, nil
	})
	end := p.Status.InitContainerStatuses[0].State.Terminated
	r, err := result.Parse([]byte(end.Message))
	if err != nil {
		l.t.Fatalf("the container exited %d and left no result (%v): %q", end.ExitCode, err, end.Message)
	}
	return &p, r
}

// mcoContainerfile has the shape of what the operator renders, for a base without the
// programs of a node.
var mcoContainerfile = []string{
	"FROM HOST/base/busy:1 AS extract",
	"COPY ./machineconfig/machineconfig.json.gz /tmp/machineconfig.json.gz",
	"RUN mkdir -p /etc/machine-config-daemon && \\",
	"    cat /tmp/machineconfig.json.gz | base64 -d | gunzip - > /etc/machine-config-daemon/currentconfig",
	"FROM HOST/base/busy:1 AS configs",
	"COPY --from=extract /etc/machine-config-daemon/currentconfig /etc/machine-config-daemon/currentconfig",
	"COPY ./openshift-config-user-ca-bundle.crt /etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt",
	"LABEL machineconfigpool=" + mcoConfig,
	"FROM configs AS final",
	"RUN cat /etc/pki/entitlement/entitlement.pem /etc/yum.repos.d/own.repo /etc/pki/rpm-gpg/KEY > /seen",
	"RUN touch /own && chown 1234:4321 /own",
}

// TestPodOfTheMachineConfigOperator: the pod that the operator makes works with only the
// image and the command of the container changed that builds. Its second container finds
// the digest.
func TestPodOfTheMachineConfigOperator(t *testing.T) {
	both := map[string]string{
		"policy.json":     `{"default":[{"type":"insecureAcceptAnything"}]}`,
		"registries.conf": "unqualified-search-registries = [\"registry.example.com\"]\n",
	}
	for name, tt := range map[string]struct {
		optional     map[string]string
		capabilities *corev1.Capabilities
		says         string
	}{
		"all": {both, nil, "User namespace: one made here"},
		// ConfigMaps that are optional and not there: a kubelet mounts directories.
		"no-policy-no-registries": {nil, nil, "User namespace: one made here"},
		// CRI-O, the runtime of OpenShift, gives a container that asks for none fewer
		// capabilities than containerd, which adds SETFCAP, SYS_CHROOT and others.
		"on-crio": {both, caps(all, "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETPCAP", "SETUID"), "beside root's, since CAP_SETFCAP is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			job := l.mcoJob(mcoContainerfile, tt.optional, func(job *batchv1.Job) {
				job.Spec.Template.Spec.InitContainers[0].SecurityContext.Capabilities = tt.capabilities
			}).Name
			p, r := l.builtBy(job)
			if r.Reason != result.ReasonSucceeded || r.Sandbox.Storage != "overlay" || r.Sandbox.UserNS != "own" {
				t.Fatalf("%s (%s) in sandbox %+v, want success with overlay on the volume", r.Reason, r.Message, r.Sandbox)
			}
			if _, condition := l.ended(job); condition.Type != batchv1.JobComplete {
				t.Fatalf("the Job is %s: %s", condition.Type, condition.Message)
			}
			pods := l.pods(job)
			if len(pods) != 1 || pods[0].UID != p.UID {
				t.Fatalf("%d pods, want one", len(pods))
			}

			img := bases.Pull(t, host, l.mcoTag(), onRegistry()...)
			second := pods[0].Status.ContainerStatuses[0].State.Terminated
			lines := strings.Split(strings.TrimSpace(second.Message), "\n")
			if digest := bases.Digest(t, img); len(lines) != 3 || lines[2] != digest || r.Digest != digest {
				t.Errorf("the registry has %s, the result %s, the second container %q", digest, r.Digest, lines)
			}
			if !strings.Contains(lines[0], mcoBuild) || !strings.Contains(lines[1], "on-cluster-layering=,") {
				t.Errorf("the second container has the environment %q", lines)
			}

			tree := bases.Flatten(t, img)
			for path, want := range map[string]string{
				"/etc/machine-config-daemon/currentconfig":                             mcoMachineConfig,
				"/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt": string(ca),
				"/seen": "of entitlement.pem\n[own]\nof KEY\n",
			} {
				if got, _ := tree.File(t, path); string(got) != want {
					t.Errorf("%s has %q, want %q", path, got, want)
				}
			}
			if _, own := tree.File(t, "/own"); own.Uid != 1234 || own.Gid != 4321 {
				t.Errorf("/own is of %d:%d", own.Uid, own.Gid)
			}
			for _, path := range []string{"/etc/pki/entitlement/entitlement.pem", "/etc/yum.repos.d/own.repo", "/etc/pki/rpm-gpg/KEY"} {
				if _, there := tree[path]; there {
					t.Errorf("%s is in the image", path)
				}
			}
			if label := bases.Config(t, img).Config.Labels["machineconfigpool"]; label != mcoConfig {
				t.Errorf("the label machineconfigpool is %q", label)
			}

			log := l.logOf(p.Name, "image-build")
			policy, registries := "/etc/containers/policy.json\n", "/etc/containers/registries.conf ("
			if tt.optional == nil {
				policy, registries = "the built-in one", "no configuration\n"
			}
			for _, want := range []string{
				tt.says, "Store: /home/build/.local/share/containers/storage, overlay",
				"Signature policy: " + policy, "Registries: " + registries,
				"Authorities: /etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt",
			} {
				if !strings.Contains(log, want) {
					t.Errorf("the log does not have %q", want)
				}
			}
			if strings.Contains(log, password) || strings.Contains(log, "of entitlement.pem") {
				t.Error("a secret is in the log")
			}
		})
	}
}
