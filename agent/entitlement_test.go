package agent

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var today = time.Date(2026, time.March, 1, 10, 0, 0, 0, time.UTC)

// entitlement is a certificate that is valid from and until some days from today.
func entitlement(t *testing.T, from, until int) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: today.AddDate(0, 0, from), NotAfter: today.AddDate(0, 0, until)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

const privateKey = "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func wantRemarks(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("remarks %q, want %d of them", got, len(want))
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("the remark %q does not have %q", got[i], want[i])
		}
	}
}

func TestEntitlements(t *testing.T) {
	valid, past, future := entitlement(t, -10, 10), entitlement(t, -10, -1), entitlement(t, 1, 10)
	for name, tt := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"a pair":                {map[string]string{"1.pem": valid, "1-key.pem": privateKey}, nil},
		"both in one":           {map[string]string{"1.pem": valid + privateKey}, nil},
		"expired":               {map[string]string{"1.pem": past, "1-key.pem": privateKey}, []string{"1.pem expired at 2026-02-28T10:00:00Z"}},
		"of tomorrow":           {map[string]string{"1.pem": future, "1-key.pem": privateKey}, []string{"1.pem is not valid before 2026-03-02T10:00:00Z"}},
		"no key":                {map[string]string{"1.pem": valid, "2-key.pem": privateKey}, []string{"1.pem has no key: there is no 1-key.pem"}},
		"nothing":               {nil, []string{"no entitlement certificate is in"}},
		"something else":        {map[string]string{"1.pem": "text", "rhsm.conf": valid}, []string{"no entitlement certificate is in"}},
		"one of two is expired": {map[string]string{"1.pem": valid, "1-key.pem": privateKey, "2.pem": past, "2-key.pem": privateKey}, []string{"2.pem expired"}},
	} {
		t.Run(name, func(t *testing.T) {
			wantRemarks(t, checkEntitlement(tree(t, tt.files), today), tt.want...)
		})
	}
}

// TestPipesAmongMounts are not waited for: nobody may ever write to them.
func TestPipesAmongMounts(t *testing.T) {
	dir := tree(t, nil)
	for _, name := range []string{"1.pem", "own.repo"} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wantRemarks(t, checkMounts([]PodMount{{Source: dir, Target: entitlementDir}, {Source: dir, Target: "/etc/yum.repos.d"}}), "no entitlement certificate is in")
}

func TestFilesThatRepositoriesName(t *testing.T) {
	entitlements := PodMount{Source: tree(t, map[string]string{"7.pem": "", "7-key.pem": ""}), Target: entitlementDir, What: "entitlement certificates"}
	keys := PodMount{Source: tree(t, map[string]string{"KEY": ""}), Target: "/etc/pki/rpm-gpg", What: "keys of packages"}
	for name, tt := range map[string]struct {
		repo   string
		mounts []PodMount
		want   []string
	}{
		"all there":               {"[a]\nsslclientcert = /etc/pki/entitlement/7.pem\nsslclientkey=/etc/pki/entitlement/7-key.pem\ngpgkey=file:///etc/pki/rpm-gpg/KEY\n", []PodMount{entitlements, keys}, nil},
		"other certificate":       {"[a]\nname=A\nsslclientcert=/etc/pki/entitlement/8.pem\n", []PodMount{entitlements}, []string{"a.repo, line 3: sslclientcert of a is /etc/pki/entitlement/8.pem, which is not in the entitlement certificates; these have 7-key.pem, 7.pem"}},
		"one of two keys":         {"[a]\ngpgkey=file:///etc/pki/rpm-gpg/KEY file:///etc/pki/rpm-gpg/OTHER\n", []PodMount{keys}, []string{"OTHER, which is not in the keys of packages; these have KEY"}},
		"disabled":                {"[a]\nenabled = 0\nsslclientcert=/etc/pki/entitlement/8.pem\n[b]\nenabled=1\n", []PodMount{entitlements}, nil},
		"no entitlement":          {"[a]\nsslclientcert=/etc/pki/entitlement/8.pem\n", []PodMount{keys}, []string{"but no entitlement certificates are mounted"}},
		"perhaps in the image":    {"[a]\ngpgkey=file:///usr/share/keys/KEY\nsslcacert=/etc/rhsm/ca/ca.pem\n", []PodMount{keys}, nil},
		"from the net":            {"[a]\ngpgkey=https://keys.example/KEY\n", []PodMount{keys}, nil},
		"with a variable":         {"[a]\ngpgkey=file:///etc/pki/rpm-gpg/KEY-$releasever\n", []PodMount{keys}, nil},
		"the same in two of them": {"[a]\nsslclientcert=/etc/pki/entitlement/8.pem\n[b]\nsslclientcert=/etc/pki/entitlement/8.pem\n", []PodMount{entitlements}, []string{"of a is"}},
	} {
		t.Run(name, func(t *testing.T) {
			repos := PodMount{Source: tree(t, map[string]string{"a.repo": tt.repo}), Target: "/etc/yum.repos.d", What: "package repositories"}
			wantRemarks(t, checkMounts(append(tt.mounts[:len(tt.mounts):len(tt.mounts)], repos))[countEntitlements(tt.mounts):], tt.want...)
		})
	}
}

// countEntitlements is how many remarks the entitlements themselves get, which hold
// no certificate here.
func countEntitlements(mounts []PodMount) int {
	if mounted(mounts, entitlementDir) {
		return 1
	}
	return 0
}
