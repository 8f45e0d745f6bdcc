package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// kind is a kind of run.
type kind struct {
	// letter is how issues and the flag call it.
	letter, title string
	// base is what is built upon, nil for nothing.
	base base
	// steps is the Containerfile, with @BASE@ for the base.
	steps string
	// builds is how many builds run at the same time.
	builds int
	// same tells that the base is in the registry to which is pushed.
	same bool
	// again tells that the same was built before, and that the file of the last COPY
	// has changed since.
	again bool
	// failed tells that the build was tried before and failed in a RUN.
	failed bool
	// cut tells that all connections to the registry are reset once half of the base's
	// size has been sent.
	cut bool
	// memory is the limit in bytes, 0 for none.
	memory int
}

const (
	secretMount = "--mount=type=secret,id=marker "
	secretText  = "a secret\n"
	label       = "io.example.pool"
	growthCase  = "growth"

	osSteps = `FROM @BASE@
COPY machineconfig/ /etc/mco/
RUN mkdir -p /opt/extension && cp -a /usr/lib/modules/*/kernel/drivers/net /opt/extension/
RUN find /usr/share/doc /usr/share/man /etc -xdev -type f -size -32k | LC_ALL=C sort | head -n 4000 | xargs -n 200 sh -c 'for f; do echo changed >> "$f"; done' sh
RUN --mount=type=secret,id=marker test -s /run/secrets/marker && find /etc -type f | wc -l > /etc/mco/count
COPY last.conf /etc/last.conf
LABEL io.example.pool=worker io.example.config=rendered-worker-0123456789abcdef
`
	trivialSteps = "FROM scratch\nCOPY last.conf /last.conf\nLABEL io.example.pool=worker\n"

	// growthSteps do little, so that what is measured is the base.
	growthSteps = `FROM @BASE@
COPY machineconfig/ /etc/mco/
RUN ["/bin/busybox", "sh", "-c", "echo changed > /etc/mco/count"]
COPY last.conf /etc/last.conf
LABEL io.example.pool=worker
`
)

// kinds returns what is compared over a base.
func kinds(b base) []kind {
	return []kind{
		{letter: "a", title: "base in one registry, push to another, cold store", base: b, steps: osSteps, builds: 1},
		{letter: "b", title: "base and push in the same registry, cold store", base: b, steps: osSteps, builds: 1, same: true},
		{letter: "c", title: "again after the file of the last COPY changed", base: b, steps: osSteps, builds: 1, again: true},
		{letter: "d", title: "the second attempt after a RUN failed", base: b, steps: osSteps, builds: 1, failed: true},
		{letter: "e", title: "as a, and all connections of the push are cut once", base: b, steps: osSteps, builds: 1, cut: true},
		{letter: "f", title: "FROM scratch and COPY of one small file", steps: trivialSteps, builds: 1},
		{letter: "g", title: "two builds at once on one base, cold store", base: b, steps: osSteps, builds: 2},
		{letter: "m", title: "as a, with 512 MiB of memory", base: b, steps: osSteps, builds: 1, memory: 512 << 20},
	}
}

// growthKinds returns builds over bases of different sizes.
func growthKinds() []kind {
	var all []kind
	for _, g := range growth {
		all = append(all, kind{letter: growthCase, title: g.String(), base: g, steps: growthSteps, builds: 1})
	}
	return all
}

// write writes Containerfile, contexts and secret of a kind into a directory, and returns
// what is to be built. Tags are host/os/built0:1 and so on.
func (k kind) write(dir, baseHost, host string) ([]build, error) {
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(secretText), 0o600); err != nil {
		return nil, err
	}
	steps := k.steps
	if k.base != nil {
		steps = strings.ReplaceAll(steps, "@BASE@", baseHost+"/"+k.base.repository()+tag)
	}
	// A rendered MachineConfig does not compress any more.
	config := make([]byte, 150_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(config)
	var builds []build
	for i := range k.builds {
		context := filepath.Join(dir, fmt.Sprint("context", i))
		containerfile := filepath.Join(dir, fmt.Sprint("Containerfile", i))
		if err := os.MkdirAll(filepath.Join(context, "machineconfig"), 0o755); err != nil {
			return nil, err
		}
		for path, data := range map[string][]byte{
			filepath.Join(context, "machineconfig/machineconfig.json.gz"): config,
			filepath.Join(context, "last.conf"):                           fmt.Appendf(nil, "of build %d\n", i),
			containerfile:                                                 []byte(steps),
		} {
			// What is as it was keeps its time, as in a directory in which someone works.
			if had, err := os.ReadFile(path); err == nil && bytes.Equal(had, data) {
				continue
			}
			if err := os.WriteFile(path, data, 0o644); err != nil {
				return nil, err
			}
		}
		builds = append(builds, build{context: context, containerfile: containerfile, secret: secret, tag: fmt.Sprintf("%s/os/built%d:1", host, i)})
	}
	return builds, nil
}
