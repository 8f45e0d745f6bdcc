package render

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

func base(changes ...func(*Containerfile)) Containerfile {
	c := Containerfile{
		BaseImage: "registry.example/base@sha256:1", ExtensionsImage: "registry.example/extensions@sha256:2",
		Architecture: "amd64", MachineConfig: "rendered-worker-1", Pool: "worker", User: "FROM configs AS final\nRUN make",
	}
	for _, change := range changes {
		change(&c)
	}
	return c
}

func TestContainerfile(t *testing.T) {
	for _, tt := range []struct {
		name     string
		c        Containerfile
		has, not []string
	}{
		{
			"plain", base(),
			[]string{
				"FROM registry.example/base@sha256:1 AS extract\n", "FROM registry.example/base@sha256:1 AS configs\n",
				"COPY machineconfig/machineconfig.json.gz /tmp/machineconfig.json.gz\n", "base64 -d /tmp/machineconfig.json.gz ",
				"/etc/machine-config-daemon/currentconfig", "ignition-apply", `LABEL machineconfig="rendered-worker-1"`, `LABEL machineconfigpool="worker"`,
				`LABEL baseOSContainerImage="registry.example/base@sha256:1"`,
			},
			[]string{"rpm-ostree", "update-ca-trust", "releaseversion", "extensions"},
		},
		{"trust bundle", base(func(c *Containerfile) { c.TrustBundle = true }), []string{"COPY openshift-config-user-ca-bundle.crt /etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt\nRUN update-ca-trust\n"}, nil},
		{"release", base(func(c *Containerfile) { c.ReleaseVersion = "4.20.1" }), []string{`LABEL releaseversion="4.20.1"`}, nil},
		{
			"extensions", base(func(c *Containerfile) { c.Extensions = []string{"usbguard", "kerberos", "two-node-ha"} }),
			[]string{"from=registry.example/extensions@sha256:2,", "rpm-ostree install usbguard krb5-workstation libkadm5 pacemaker pcs fence-agents-all &&"},
			[]string{"override remove"},
		},
		{
			"realtime kernel with an extension", base(func(c *Containerfile) { c.KernelType, c.Extensions = "realtime", []string{"usbguard"} }),
			[]string{"rpm-ostree override remove kernel kernel-core kernel-modules kernel-modules-core kernel-modules-extra --install kernel-rt-core ", "--install usbguard &&"},
			nil,
		},
		{"64k pages", base(func(c *Containerfile) { c.KernelType, c.Architecture = "64k-pages", "arm64" }), []string{"--install kernel-64k-core"}, nil},
		{"default kernel", base(func(c *Containerfile) { c.KernelType = "default" }), nil, []string{"rpm-ostree"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, line, err := tt.c.Render()
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range tt.has {
				if !strings.Contains(got, text) {
					t.Errorf("it has no %q:\n%s", text, got)
				}
			}
			for _, text := range tt.not {
				if strings.Contains(got, text) {
					t.Errorf("it has %q:\n%s", text, got)
				}
			}
			if lines := strings.Split(got, "\n"); lines[line-1] != "FROM configs AS final" || lines[line] != "RUN make" {
				t.Errorf("line %d is %q", line, lines[line-1])
			}
		})
	}
}

func TestContainerfileThatCannotBe(t *testing.T) {
	for _, tt := range []struct {
		name string
		c    Containerfile
		says string
	}{
		{"no base", base(func(c *Containerfile) { c.BaseImage = "" }), "osImageURL"},
		{"base with a line break", base(func(c *Containerfile) { c.BaseImage = "x\nRUN evil" }), "no name of an image"},
		{"release with a line break", base(func(c *Containerfile) { c.ReleaseVersion = "4.20\nRUN evil" }), "release version"},
		{"unknown extension", base(func(c *Containerfile) { c.Extensions = []string{"sauna"} }), `"sauna"`},
		{"unknown kernel", base(func(c *Containerfile) { c.KernelType = "popcorn" }), `"popcorn"`},
		{"64k pages on amd64", base(func(c *Containerfile) { c.KernelType = "64k-pages" }), "arm64"},
		{"no extensions image", base(func(c *Containerfile) { c.ExtensionsImage, c.Extensions = "", []string{"usbguard"} }), "baseOSExtensionsContainerImage"},
	} {
		if _, _, err := tt.c.Render(); err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "rendered-worker-1") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// random returns bytes that do not compress.
func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b) // never fails
	return b
}

func TestParts(t *testing.T) {
	for _, tt := range []struct {
		name    string
		content []byte
		parts   int
	}{
		{"small", []byte("{}"), 1},
		{"3 MiB that compress", bytes.Repeat([]byte("machine config "), 3<<20/15), 1},
		{"3 MiB that do not", random(3 << 20), 4},
		{"as much as fits", random(MaxParts*PartBytes - 4<<10), 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parts, err := Parts("m", tt.content)
			if err != nil {
				t.Fatal(err)
			}
			if len(parts) != tt.parts {
				t.Errorf("%d parts, want %d", len(parts), tt.parts)
			}
			names := map[string]bool{}
			for i, p := range parts {
				if len(p) > 1<<20 {
					t.Errorf("part %d has %d bytes", i, len(p))
				}
				names[PartFile(i, len(parts))] = true
			}
			if len(names) != len(parts) {
				t.Errorf("names %v", names)
			}
			r, err := gzip.NewReader(bytes.NewReader(bytes.Join(parts, nil)))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, tt.content) {
				t.Errorf("the parts do not make up what went in: %v", err)
			}
		})
	}
	_, err := Parts("rendered-worker-1", random(MaxParts*PartBytes+1))
	if tooLarge := (*TooLargeError)(nil); !errors.As(err, &tooLarge) || !strings.Contains(err.Error(), "rendered-worker-1") {
		t.Errorf("too large: %v", err)
	}
}

func TestFiles(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = w.Write([]byte("unqualified = []")) // to memory
	_ = w.Close()
	config := `{"ignition":{"version":"3.4.0"},"storage":{"files":[
		{"path":"/a","contents":{"source":"data:,hello%20there%2C%20you"}},
		{"path":"/b","contents":{"source":"data:text/plain;charset=utf-8;base64,aGVsbG8="}},
		{"path":"/c","contents":{"source":"data:;base64,` + base64.StdEncoding.EncodeToString(zipped.Bytes()) + `","compression":"gzip"}},
		{"path":"/d","contents":{}},
		{"path":"/skipped","contents":{"source":"https://example.com/x"}}]}}`
	want := map[string]string{"/a": "hello there, you", "/b": "hello", "/c": "unqualified = []", "/d": ""}
	files, err := Files([]byte(config), func(p string) bool { return p != "/skipped" })
	if err != nil || len(files) != len(want) {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		if string(f.Content) != want[f.Path] {
			t.Errorf("%s: %q, want %q", f.Path, f.Content, want[f.Path])
		}
	}
	for name, bad := range map[string]string{
		"remote": `{"storage":{"files":[{"path":"/x","contents":{"source":"https://example.com/x"}}]}}`,
		"base64": `{"storage":{"files":[{"path":"/x","contents":{"source":"data:;base64,###"}}]}}`,
		"gzip":   `{"storage":{"files":[{"path":"/x","contents":{"source":"data:,x","compression":"gzip"}}]}}`,
	} {
		if _, err := Files([]byte(bad), func(string) bool { return true }); err == nil || !strings.Contains(err.Error(), "/x") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Files([]byte(`[]`), nil); err == nil {
		t.Error("a list was taken for a config")
	}
}

// TestGolden keeps the Containerfile as it is in testdata, which test/integration
// builds. UPDATE_GOLDEN=1 writes it anew.
func TestGolden(t *testing.T) {
	const golden = "testdata/Containerfile"
	got, _, err := Containerfile{
		BaseImage: "BASE", ExtensionsImage: "EXTENSIONS", Extensions: []string{"usbguard"}, KernelType: "realtime", Architecture: "amd64",
		MachineConfig: "rendered-worker-1", Pool: "worker", ReleaseVersion: "4.20.1", TrustBundle: true,
		User: "FROM configs AS final\nRUN echo admin > /usr/share/admin",
	}.Render()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("it is\n%s\nand in %s it is\n%s", got, golden, want)
	}
}
