package agent

import (
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// entitlementDir is where the configuration of repositories that need an entitlement
// looks for it.
const entitlementDir = "/etc/pki/entitlement"

// checkMounts says, one sentence each, what of the entitlements and repositories that
// steps will see cannot work: a certificate that expired or lacks its key, a
// repository that names a file which is not there.
func checkMounts(mounts []PodMount) (remarks []string) {
	for _, m := range mounts {
		switch m.Target {
		case entitlementDir:
			remarks = append(remarks, checkEntitlement(m.Source, time.Now())...)
		default:
			files, _ := filepath.Glob(filepath.Join(m.Source, "*.repo")) // there is no bad pattern to fail for
			for _, file := range files {
				if !irregular(file) {
					remarks = append(remarks, checkRepository(file, mounts)...)
				}
			}
		}
	}
	return remarks
}

// checkEntitlement looks at the pairs NAME.pem and NAME-key.pem in a directory.
func checkEntitlement(dir string, now time.Time) (remarks []string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.pem"))
	certificates := 0
	for _, file := range files {
		if irregular(file) {
			continue // steps do not get it
		}
		text, err := os.ReadFile(file)
		if err != nil {
			remarks = append(remarks, fmt.Sprintf("the entitlement %s cannot be read: %v", file, err))
			continue
		}
		certificate, key := readPEM(text)
		if certificate == nil {
			continue
		}
		certificates++
		keyFile := strings.TrimSuffix(file, ".pem") + "-key.pem"
		switch {
		case now.After(certificate.NotAfter):
			remarks = append(remarks, fmt.Sprintf("the entitlement certificate %s expired at %s: repositories that ask for it will refuse", file, certificate.NotAfter.UTC().Format(time.RFC3339)))
		case now.Before(certificate.NotBefore):
			remarks = append(remarks, fmt.Sprintf("the entitlement certificate %s is not valid before %s", file, certificate.NotBefore.UTC().Format(time.RFC3339)))
		case !key && !exists(keyFile):
			remarks = append(remarks, fmt.Sprintf("the entitlement certificate %s has no key: there is no %s", file, filepath.Base(keyFile)))
		}
	}
	if certificates == 0 {
		remarks = append(remarks, fmt.Sprintf("no entitlement certificate is in %s, which is to hold NAME.pem and NAME-key.pem", dir))
	}
	return remarks
}

// irregular tells of what is there and no regular file, such as a pipe, which nobody may
// write to.
func irregular(file string) bool {
	info, err := os.Stat(file)
	return err == nil && !info.Mode().IsRegular()
}

// readPEM returns the first certificate in a file, nil for none, and whether there is
// a private key beside it.
func readPEM(text []byte) (certificate *x509.Certificate, key bool) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch {
		case block.Type == "CERTIFICATE" && certificate == nil:
			certificate, _ = x509.ParseCertificate(block.Bytes) // one that is none is not counted
		case strings.HasSuffix(block.Type, "PRIVATE KEY"):
			key = true
		}
	}
	return certificate, key
}

// repositoryFiles are the settings of a repository that name files (dnf.conf(5)).
var repositoryFiles = map[string]bool{"sslclientcert": true, "sslclientkey": true, "sslcacert": true, "gpgkey": true}

// checkRepository says which file the enabled repositories in a .repo file name that
// would be in a mount and is not there.
func checkRepository(file string, mounts []PodMount) (remarks []string) {
	f, err := os.Open(file)
	if err != nil {
		return []string{fmt.Sprintf("the repositories in %s cannot be read: %v", file, err)}
	}
	defer f.Close()
	var section, missing []string
	seen := map[string]bool{}
	enabled := true
	end := func() {
		if enabled {
			remarks = append(remarks, missing...)
		}
		missing, enabled = nil, true
	}
	for lines, n := bufio.NewScanner(f), 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "[") {
			end()
			section = strings.FieldsFunc(line, func(c rune) bool { return c == '[' || c == ']' })
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		switch {
		case name == "enabled":
			enabled = value != "0" && !strings.EqualFold(value, "false") && !strings.EqualFold(value, "no")
		case repositoryFiles[name]:
			for _, word := range strings.FieldsFunc(value, func(c rune) bool { return c == ',' || c == ' ' }) {
				if why := missingFrom(word, mounts); why != "" && !seen[word] {
					seen[word] = true
					missing = append(missing, fmt.Sprintf("%s, line %d: %s of %s is %s, %s", file, n, name, strings.Join(section, ""), word, why))
				}
			}
		}
	}
	end()
	return remarks
}

// missingFrom says why a file that a repository names is not there for steps; nothing
// when it is, or may be in the image.
func missingFrom(name string, mounts []PodMount) string {
	if u, err := url.Parse(name); err == nil && u.Scheme == "file" {
		name = u.Path
	}
	if !path.IsAbs(name) || strings.ContainsAny(name, "$*") {
		return ""
	}
	for _, m := range mounts {
		inside, ok := strings.CutPrefix(path.Clean(name), m.Target+"/")
		if !ok || exists(filepath.Join(m.Source, inside)) {
			continue
		}
		var there []string
		entries, _ := os.ReadDir(m.Source) // what cannot be read has nothing
		for _, entry := range entries {
			if !strings.HasPrefix(entry.Name(), "..") {
				there = append(there, entry.Name())
			}
		}
		return fmt.Sprintf("which is not in the %s; these have %s", m.What, orNone(there))
	}
	if strings.HasPrefix(path.Clean(name), entitlementDir+"/") && !mounted(mounts, entitlementDir) {
		return "but no entitlement certificates are mounted"
	}
	return ""
}

func mounted(mounts []PodMount, target string) bool {
	for _, m := range mounts {
		if m.Target == target {
			return true
		}
	}
	return false
}
