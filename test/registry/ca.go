package registry

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"testing"
	"time"
)

// CAName is the common name of each authority that NewCA makes.
const CAName = "Strata Test CA"

// CA is a certificate authority that no system trusts.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA makes an authority with a new key.
func NewCA(t testing.TB) *CA {
	t.Helper()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: CAName},
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	ca := new(CA)
	ca.cert, ca.key = certify(t, template, nil)
	return ca
}

// PEM returns the authority's certificate as a PEM block.
func (ca *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// WriteFile writes PEM to a file.
func (ca *CA) WriteFile(t testing.TB, path string) {
	t.Helper()
	if err := os.WriteFile(path, ca.PEM(), 0o644); err != nil {
		t.Fatalf("registry: writing the CA: %v", err)
	}
}

// Pool returns a pool with nothing but this authority.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// serverConfig returns what a server needs for HTTPS on this machine.
func (ca *CA) serverConfig(t testing.TB) *tls.Config {
	t.Helper()
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "Strata Test Registry"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		DNSNames:    []string{"localhost"},
	}
	cert, key := certify(t, template, ca)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw, ca.cert.Raw}, PrivateKey: key}},
		NextProtos:   []string{"http/1.1"}, // a connection of HTTP/2 cannot be cut for one request
	}
}

// certify makes a key and a certificate for it, signed by ca or, without one, by
// itself.
func certify(t testing.TB, template *x509.Certificate, ca *CA) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("registry: making a key for %s: %v", template.Subject, err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		t.Fatalf("registry: making a serial number for %s: %v", template.Subject, err)
	}
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(24 * time.Hour)
	parent, signer := template, key
	if ca != nil {
		parent, signer = ca.cert, ca.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatalf("registry: signing the certificate of %s: %v", template.Subject, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("registry: reading the certificate of %s back: %v", template.Subject, err)
	}
	return cert, key
}
