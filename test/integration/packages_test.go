package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

// repository is a repository of one signed package behind https that lets in who has
// a certificate.
type repository struct {
	url       string
	authority string // its certificate
	key       string // the public key of its package
	// certificate and secret are those of a client.
	certificate, secret string
}

// run runs a program that makes something for the test.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// newRepository makes the package, its key and its repository, and serves it.
func newRepository(t *testing.T) *repository {
	t.Helper()
	dir := t.TempDir()
	home := filepath.Join(dir, "gnupg")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	env := []string{"GNUPGHOME=" + home, "HOME=" + dir}
	run(t, dir, env, "gpg", "--batch", "--passphrase", "", "--quick-generate-key", "packager@strata.test", "rsa2048", "sign", "0")
	t.Cleanup(func() { run(t, dir, env, "gpgconf", "--kill", "all") })
	r := &repository{key: run(t, dir, env, "gpg", "--armor", "--export", "packager@strata.test")}
	spec := filepath.Join(dir, "tree.spec")
	if err := os.WriteFile(spec, []byte(`Name: tree-of-strata
Version: 1
Release: 1
Summary: a package of the test
License: Apache-2.0
BuildArch: noarch
%description
A package of the test.
%install
mkdir -p %{buildroot}/usr/share/strata
echo installed > %{buildroot}/usr/share/strata/tree
%files
/usr/share/strata/tree
`), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, dir, env, "rpmbuild", "-bb", "--define", "_topdir "+dir+"/rpm", "--define", "_rpmdir "+dir+"/repo", spec)
	packages, err := filepath.Glob(filepath.Join(dir, "repo/noarch/*.rpm"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("rpmbuild made %v (%v)", packages, err)
	}
	run(t, dir, env, "rpmsign", "--addsign", "--define", "__gpg /usr/bin/gpg", "--define", "_gpg_name packager@strata.test", packages[0])
	run(t, dir, env, "createrepo_c", filepath.Join(dir, "repo"))

	ca := newKeyPair(t, nil, func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	})
	server := newKeyPair(t, ca, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })
	client := newKeyPair(t, ca, func(*x509.Certificate) {})
	r.authority, r.certificate, r.secret = ca.pem, client.pem, client.keyPEM
	pool := x509.NewCertPool()
	pool.AddCert(ca.certificate)
	files := http.FileServer(http.Dir(filepath.Join(dir, "repo")))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if len(req.TLS.PeerCertificates) == 0 {
			http.Error(w, "an entitlement is required", http.StatusForbidden)
			return
		}
		files.ServeHTTP(w, req)
	}))
	s.Config.ErrorLog = log.New(os.Stderr, "", 0)
	s.TLS = &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{server.certificate.Raw}, PrivateKey: server.key}},
		ClientAuth:   tls.VerifyClientCertIfGiven, ClientCAs: pool, MinVersion: tls.VersionTLS12,
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	r.url = s.URL
	return r
}

type keyPair struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem, keyPEM string
}

// newKeyPair makes a certificate that by signs, or that signs itself.
func newKeyPair(t *testing.T, by *keyPair, change func(*x509.Certificate)) *keyPair {
	t.Helper()
	p := &keyPair{}
	var err error
	if p.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "strata test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	change(template)
	if by == nil {
		by = &keyPair{certificate: template, key: p.key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.certificate, p.key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	if p.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		t.Fatal(err)
	}
	p.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	p.keyPEM = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	return p
}

// TestPackageThatNeedsAnEntitlement installs a package as an entitled host does: the
// repository, its key, the certificate and the authority come from the pod.
func TestPackageThatNeedsAnEntitlement(t *testing.T) {
	r := newRepository(t)
	l := newPod(t)
	l.addBase("base/debian:1", bases.Debian(t))
	l.pod("FROM HOST/base/debian:1",
		"RUN dnf --releasever=1 --disablerepo='*' --enablerepo=own -y install tree-of-strata && rpm -q tree-of-strata")
	for _, m := range []string{"ENTITLEMENT:/etc/pki/entitlement", "RPM_GPG:/etc/pki/rpm-gpg"} {
		name, dir, _ := strings.Cut(m, ":")
		l.env = append(l.env, "ETC_PKI_"+name+"_MOUNTPOINT="+dir)
	}
	l.env = append(l.env, "ETC_YUM_REPOS_D_MOUNTPOINT=/etc/yum.repos.d")
	l.mounted("pod/etc/pki/rpm-gpg", map[string]string{"KEY": r.key})
	l.mounted("pod/run/secrets/rhsm", map[string]string{"ca.pem": r.authority})
	repo := fmt.Sprintf("[own]\nname=own\nbaseurl=%s\ngpgcheck=1\ngpgkey=file:///etc/pki/rpm-gpg/KEY\nsslcacert=/run/secrets/rhsm/ca.pem\n", r.url)
	entitled := repo + "sslclientcert=/etc/pki/entitlement/7.pem\nsslclientkey=/etc/pki/entitlement/7-key.pem\n"
	l.mounted("pod/etc/yum.repos.d", map[string]string{"own.repo": entitled})
	l.mounted(podEntitlement, map[string]string{"7.pem": r.certificate, "7-key.pem": r.secret})
	o := l.build()
	o.wantSuccess(t)
	if got := l.files("os/layered:1")["usr/share/strata/tree"]; got != "installed\n" {
		t.Errorf("the file of the package has %q", got)
	}
	if strings.Contains(o.stderr, "Warning: /etc") {
		t.Error("something is warned of that is as it should be")
	}

	// A repository that does not send the certificate is refused.
	l.file("pod/etc/yum.repos.d/..data/own.repo", repo)
	o = l.build("--no-cache")
	o.wantFailure(t, result.ReasonStepFailed, "Status code: 403 for "+r.url+"/repodata/repomd.xml", "dnf --releasever=1")

	// One that names a certificate which is not there is warned of.
	l.file("pod/etc/yum.repos.d/..data/own.repo", strings.ReplaceAll(entitled, "/7", "/8"))
	o = l.build("--no-cache")
	o.wantFailure(t, result.ReasonStepFailed, "dnf --releasever=1", "error reading X.509 key or certificate file")
	o.wantLine(t, "Warning: /etc/yum.repos.d/own.repo, line 7: sslclientcert of own is /etc/pki/entitlement/8.pem, which is not in the entitlement certificates; these have 7-key.pem, 7.pem")
}
