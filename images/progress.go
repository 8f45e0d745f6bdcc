package images

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	digest "github.com/opencontainers/go-digest"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"go.podman.io/image/v5/types"
	"golang.org/x/term"

	"github.com/strata-build/strata/images/layers"
)

// pullReport is where a pull says what it does, of which package layers does one part and
// then a copy the rest. It passes on what the copy writes, which is whole lines, but for
// those of layers that were said already.
type pullReport struct {
	out io.Writer
	// terminal is where bars are drawn, nil for none.
	terminal *os.File

	mu   sync.Mutex
	said map[digest.Digest]bool
}

// newPullReport reports on the terminal where there is one, else in lines.
func newPullReport(lines io.Writer, terminal *os.File) *pullReport {
	r := &pullReport{out: lines, said: map[digest.Digest]bool{}}
	if terminal != nil {
		r.out = terminal
		if term.IsTerminal(int(terminal.Fd())) {
			r.terminal = terminal
		}
	}
	return r
}

// copying begins the line that a copy writes of a layer.
const copying = "Copying blob "

// Write implements io.Writer.
func (r *pullReport) Write(p []byte) (int, error) {
	if d, ok := bytes.CutPrefix(p, []byte(copying)); ok {
		r.mu.Lock()
		said := r.said[digest.Digest(bytes.TrimSpace(d))]
		r.mu.Unlock()
		if said {
			return len(p), nil
		}
	}
	return r.out.Write(p)
}

// say says that a layer is read, once.
func (r *pullReport) say(d digest.Digest) {
	r.mu.Lock()
	said := r.said[d]
	r.said[d] = true
	r.mu.Unlock()
	if !said && r.terminal == nil {
		fmt.Fprintf(r.out, "%s%s\n", copying, d)
	}
}

// pullProgress tells how far the layers of an image are: a meter, and who watches.
type pullProgress struct {
	report *pullReport
	events chan<- types.ProgressProperties
	bars   *mpb.Progress // nil for none

	mu   sync.Mutex
	open map[layers.Layer]*layerProgress
}

type layerProgress struct {
	bar  *mpb.Bar // nil for none
	told time.Time
}

func newPullProgress(report *pullReport, events chan<- types.ProgressProperties) *pullProgress {
	p := &pullProgress{report: report, events: events, open: map[layers.Layer]*layerProgress{}}
	if report.terminal != nil {
		p.bars = mpb.New(mpb.WithWidth(40), mpb.WithOutput(report.terminal))
	}
	return p
}

// barName is as much of a layer's digest as tells it from others.
const barName = 12

// begin tells that a layer is about to be read.
func (p *pullProgress) begin(layer layers.Layer) {
	p.report.say(layer.Digest)
	l := &layerProgress{told: time.Now()}
	if p.bars != nil {
		name := copying + layer.Digest.Encoded()[:barName]
		l.bar = p.bars.AddBar(max(layer.Size, 0),
			mpb.BarFillerClearOnComplete(),
			mpb.PrependDecorators(decor.OnComplete(decor.Name(name), name+" done")),
			mpb.AppendDecorators(decor.OnComplete(decor.CountersKibiByte("%.1f / %.1f"), "")))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.open[layer]; before != nil && before.bar != nil {
		before.bar.Abort(true)
	}
	p.open[layer] = l
}

// read tells how many bytes of a layer have been read. One that another build makes is
// waited for, and has not begun.
func (p *pullProgress) read(layer layers.Layer, read int64) {
	p.mu.Lock()
	l := p.open[layer]
	if l == nil {
		l = &layerProgress{told: time.Now()}
		p.open[layer] = l
	}
	due := time.Since(l.told) >= progressInterval
	if due {
		l.told = time.Now()
	}
	p.mu.Unlock()
	if l.bar != nil {
		l.bar.SetCurrent(read)
	}
	if due {
		p.events <- types.ProgressProperties{Event: types.ProgressEventRead, Artifact: types.BlobInfo{Digest: layer.Digest, Size: layer.Size}, Offset: uint64(read)} //nolint:gosec // it is not negative
	}
}

// done tells that a layer is there.
func (p *pullProgress) done(layer layers.Layer, read int64) {
	p.mu.Lock()
	l := p.open[layer]
	p.mu.Unlock()
	if l.bar != nil {
		l.bar.SetTotal(read, true)
	}
	p.events <- types.ProgressProperties{Event: types.ProgressEventDone, Artifact: types.BlobInfo{Digest: layer.Digest, Size: layer.Size}, Offset: uint64(read)} //nolint:gosec // it is not negative
}

// end ends the bars: those of layers that are not there stay as they are.
func (p *pullProgress) end() {
	if p.bars == nil {
		return
	}
	p.mu.Lock()
	for _, l := range p.open {
		if l.bar != nil {
			l.bar.Abort(false)
		}
	}
	p.mu.Unlock()
	p.bars.Wait()
}
