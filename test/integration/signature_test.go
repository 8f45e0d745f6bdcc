package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

// signingKey makes a pair of keys in sigstore's format and returns their paths.
func (l *lab) signingKey(name, passphrase string) (private, public string) {
	l.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		l.t.Fatal(err)
	}
	locked, err := encrypted.Encrypt(der, []byte(passphrase))
	if err != nil {
		l.t.Fatal(err)
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		l.t.Fatal(err)
	}
	return l.file(name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY", Bytes: locked}))),
		l.file(name+".pub", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub})))
}

const attachments = "home/.config/containers/registries.d/attachments.yaml"

// policy writes a signature policy with a requirement for the registry alone.
func (l *lab) policy(requirement string) string {
	l.t.Helper()
	return l.file("policy.json", fmt.Sprintf(`{"default":[{"type":"insecureAcceptAnything"}],"transports":{"docker":{%q:[%s]}}}`, l.registry.Host(), requirement))
}

func TestSigstoreSignatures(t *testing.T) {
	l := newLab(t).withBusy()
	phrase := "phrase-of-the-key"
	l.secrets = append(l.secrets, phrase)
	phraseFile := l.file("phrase", phrase+"\n")
	key, public := l.signingKey("ours", phrase)
	_, otherPublic := l.signingKey("theirs", phrase)
	l.containerfile("FROM HOST/base/busy:1", "RUN echo signed > /signed")
	sign := []string{"--tag", l.image("os/signed:1"), "--push", "--retry-on", "transient", "--sign-by-sigstore-private-key", key}

	o := l.build(append(sign, "--sign-passphrase-file", l.file("wrong", "another phrase"))...)
	o.wantFailure(t, result.ReasonSettingsInvalid, "the key "+key+" cannot be used")
	if _, built := o.result.Phases[result.Build]; built {
		t.Error("it was built before the key was tried")
	}
	o = l.build(append(sign, "--sign-passphrase-file", phraseFile)...)
	o.wantFailure(t, result.ReasonSettingsInvalid, "use-sigstore-attachments: true for "+l.registry.Host())

	l.file(attachments, "default-docker:\n  use-sigstore-attachments: true\n")
	o = l.build(append(sign, "--sign-passphrase-file", phraseFile)...)
	o.wantSuccess(t)
	if n := l.registry.Count(http.MethodPut, "/manifests/sha256-"+strings.TrimPrefix(o.result.Digest, "sha256:")+`\.sig$`); n != 1 {
		t.Errorf("the signature was put %d times", n)
	}

	for name, tt := range map[string]struct {
		key, base string
		attached  string // the configuration that says where signatures are
		fails     bool
	}{
		"signed":                          {public, "os/signed:1", "true", false},
		"by somebody else":                {otherPublic, "os/signed:1", "true", true},
		"not at all":                      {public, "base/busy:1", "true", true},
		"L10 not known where to look for": {public, "os/signed:1", "false", true},
	} {
		t.Run(name, func(t *testing.T) {
			l.newStore()
			l.file(attachments, "default-docker:\n  use-sigstore-attachments: "+tt.attached+"\n")
			policy := l.policy(fmt.Sprintf(`{"type":"sigstoreSigned","keyPath":%q,"signedIdentity":{"type":"matchRepository"}}`, tt.key))
			l.containerfile("FROM HOST/"+tt.base, "RUN true")
			layers := func() (n int) {
				for _, layer := range bases.LayerDigests(t, bases.Pull(t, l.registry.Host(), tt.base)) {
					n += l.registry.Count(http.MethodGet, "/blobs/"+layer)
				}
				return n
			}
			before := layers()
			o := l.build("--signature-policy", policy, "--retry-on", "transient")
			if !tt.fails {
				o.wantSuccess(t)
				if strings.Contains(o.stderr, "is unpacked by containers/image") {
					t.Error("the layers were not staged")
				}
				return
			}
			if n := layers() - before; n > 0 {
				t.Errorf("%d layers of an image that is refused were fetched", n)
			}
			o.wantFailure(t, result.ReasonSignatureRejected, "signature", policy, "line 1")
			o.wantAttempts(t, result.Pull, 1)
		})
	}
}

// TestSimpleSignatures is of signatures in a directory beside the registry, by GnuPG.
func TestSimpleSignatures(t *testing.T) {
	l := newLab(t)
	busy := bases.Busy(t)
	l.addBase("base/busy:1", busy)
	manifest, err := busy.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	l.file("manifest", string(manifest))
	home := l.mkdir("gnupg")
	chown(t, home, 0, 0o700)
	env := []string{"GNUPGHOME=" + home, "HOME=" + l.dir}
	for _, name := range []string{"ours", "theirs"} {
		run(t, l.dir, env, "gpg", "--batch", "--passphrase", "", "--quick-generate-key", name+"@strata.test", "rsa2048", "sign", "0")
		l.file(name+".gpg", run(t, l.dir, env, "gpg", "--export", name+"@strata.test"))
	}
	t.Cleanup(func() { run(t, l.dir, env, "gpgconf", "--kill", "all") })
	place := "signatures/base/busy@sha256=" + strings.TrimPrefix(bases.Digest(t, busy), "sha256:")
	run(t, l.dir, env, "skopeo", "standalone-sign", "manifest", l.image("base/busy:1"), "ours@strata.test", "--output", filepath.Join(l.mkdir(place), "signature-1"))
	l.file("home/.config/containers/registries.d/signatures.yaml", fmt.Sprintf("docker:\n  %s:\n    lookaside: file://%s/signatures\n", l.registry.Host(), l.dir))
	l.containerfile("FROM HOST/base/busy:1", "RUN true")
	for name, fails := range map[string]bool{"ours": false, "theirs": true} {
		t.Run(name, func(t *testing.T) {
			l.newStore()
			policy := l.policy(fmt.Sprintf(`{"type":"signedBy","keyType":"GPGKeys","keyPath":%q}`, filepath.Join(l.dir, name+".gpg")))
			o := l.build("--signature-policy", policy, "--retry-on", "transient")
			if fails {
				o.wantFailure(t, result.ReasonSignatureRejected, "signature", policy, "line 1")
				o.wantAttempts(t, result.Pull, 1)
				return
			}
			o.wantSuccess(t)
		})
	}
}

// TestSignedBaseBehindTheTrustBundle is of a registry that only authorities of the
// build pod vouch for, and whose images containers/image reads.
func TestSignedBaseBehindTheTrustBundle(t *testing.T) {
	l := newPod(t, registry.WithTLS())
	l.addBase("base/busy:1", bases.Busy(t))
	l.env = append(l.env, "STRATA_TLS_VERIFY=true", "STRATA_SIGNATURE_POLICY="+l.policy(`{"type":"signedBy","keyType":"GPGKeys","keyPath":"/no/such"}`))
	l.file(podBundle, string(l.registry.CA().PEM()))
	l.pod("FROM HOST/base/busy:1")
	o := l.build()
	o.wantFailure(t, result.ReasonSignatureRejected, "signature")
}

// TestL10InAPod has the policy where a build pod mounts it, and nothing that says where
// signatures are.
func TestL10InAPod(t *testing.T) {
	l := newPod(t).withBusy()
	_, public := l.signingKey("ours", "phrase")
	policy := l.policy(fmt.Sprintf(`{"type":"sigstoreSigned","keyPath":%q,"signedIdentity":{"type":"matchRepository"}}`, public))
	l.mkdir("pod/etc/containers")
	if err := os.Rename(policy, filepath.Join(l.dir, "pod/etc/containers/policy.json")); err != nil {
		t.Fatal(err)
	}
	l.pod("FROM HOST/base/busy:1", "RUN true")
	o := l.build()
	o.wantFailure(t, result.ReasonSignatureRejected, "signature", "/etc/containers/policy.json", "line 1")
	o.wantAttempts(t, result.Pull, 1)
	o.wantLine(t, "Signature policy: /etc/containers/policy.json")
}

// TestMirrorsByDigestAndByTag: who is asked depends on how the image is named.
func TestMirrorsByDigestAndByTag(t *testing.T) {
	l := newLab(t)
	busy := bases.Busy(t)
	l.addBase("base/busy:1", busy)
	digest := bases.Digest(t, busy)
	mirrors := map[string]*registry.Registry{"digest-only": registry.Start(t), "tag-only": registry.Start(t)}
	conf := fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", l.registry.Host())
	for kind, m := range mirrors {
		bases.Push(t, m.Host(), "base/busy:1", busy)
		conf += fmt.Sprintf("[[registry.mirror]]\nlocation = %q\ninsecure = true\npull-from-mirror = %q\n", m.Host(), kind)
	}
	for name, asked := range map[string]string{"base/busy:1": "tag-only", "base/busy@" + digest: "digest-only"} {
		t.Run(asked, func(t *testing.T) {
			l.newStore()
			l.registry.Reset()
			for _, m := range mirrors {
				m.Reset()
			}
			l.containerfile("FROM HOST/"+name, "RUN true")
			l.bare = true
			l.build("--storage-root", filepath.Join(l.dir, "store"), "--result", filepath.Join(l.dir, "result.json"),
				"--registries-conf", l.file("registries.conf", conf), l.context).wantSuccess(t)
			for kind, m := range mirrors {
				if n := m.Count(http.MethodGet, "/manifests/"); (n > 0) != (kind == asked) {
					t.Errorf("the mirror for %s was asked %d times", kind, n)
				}
			}
			if n := l.registry.Count("", ""); n != 0 {
				t.Errorf("the registry itself was asked %d times", n)
			}
		})
	}
}
