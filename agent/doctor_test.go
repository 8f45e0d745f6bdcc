package agent

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares text with a file of testdata, which -update writes.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		writeFile(t, path, got)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs:\n%s\nwant\n%s", path, got, want)
	}
}

func TestDoctor(t *testing.T) {
	found := func(check string, severity images.Severity, found, hint string, reason result.Reason) images.Finding {
		return images.Finding{Check: check, Severity: severity, Found: found, Hint: hint, Reason: reason}
	}
	for name, findings := range map[string][]images.Finding{
		"builds": {
			found("user namespace", images.SeverityOK, "one made here, with 65537 ids that newuidmap gives sam", "", ""),
			found("storage", images.SeverityWarning, "the store uses vfs", "put the store on an emptyDir volume", ""),
			found("mounts", images.SeverityOK, "overlays can be mounted in /store/tmp", "", ""),
		},
		"fails": {
			found("user namespace", images.SeverityFailure, "no user namespace can be made: the sysctl user.max_user_namespaces is 0",
				"on the node: sysctl -w user.max_user_namespaces=28633", result.ReasonUserNamespaceUnavailable),
			found("store", images.SeverityFailure, "the store /s cannot be written to: it is mounted read-only", "mount an emptyDir volume at /s", result.ReasonStorageUnavailable),
			found("storage", images.SeverityUnknown, "not looked at, since it needs what failed: user namespace", "", ""),
		},
		"full": {
			found("store", images.SeverityFailure, "the store /s cannot be written to: the filesystem at / (ext4) is full & 0 B are free", "remove files there", result.ReasonNoSpace),
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := conclude(findings)
			d.Agent = "v1.2.3"
			for ending, write := range map[string]func(io.Writer, Diagnosis) error{".txt": writeTable, ".json": writeJSON} {
				var b bytes.Buffer
				if err := write(&b, d); err != nil {
					t.Fatal(err)
				}
				golden(t, "doctor-"+name+ending, b.String())
			}
		})
	}
}
