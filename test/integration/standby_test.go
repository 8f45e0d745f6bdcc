package integration

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/strata-build/strata/agent/result"
)

// TestProcessesStandByForCopies: what buildah starts for copies is done by the two
// processes that stand by, without which all is the same.
func TestProcessesStandByForCopies(t *testing.T) {
	l := newLab(t).withBusy()
	l.file("context/a/one", "1")
	l.file("context/a/two", "2")
	l.containerfile("FROM HOST/base/busy:1 AS other", "COPY a /a/", "FROM HOST/base/busy:1", "COPY --chown=7:8 a /a/", "COPY --from=other /a/two /b/", "RUN test $(cat /a/one /b/two) = 12 && test $(stat -c %u:%g /a/one) = 7:8")
	const said = "Processes that stood by did work of copies times="
	stoodBy := l.build("--log-level", "debug", "--tag", "localhost/x")
	stoodBy.wantSuccess(t)
	if !strings.Contains(stoodBy.stderr, said) || strings.Contains(stoodBy.stderr, said+"0") {
		t.Error("no work of copies was done by processes that stood by")
	}
	l.newStore()
	l.store = filepath.Join(l.dir, strings.Repeat("x", 110)) // no socket can be made there
	alone := l.build("--log-level", "debug", "--tag", "localhost/x")
	alone.wantSuccess(t)
	alone.wantLine(t, "debug: Copies start processes of their own")
	l.containerfile("FROM HOST/base/busy:1", "COPY a /a/", "COPY *.none /b/")
	l.build("--retry-on", "transient").wantFailure(t, result.ReasonContextFileMissing, "*.none")
	l.store = filepath.Join(l.dir, "store")
	l.build("--retry-on", "transient").wantFailure(t, result.ReasonContextFileMissing, "*.none")
}
