package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/strata-build/strata/test/bench/measure"
)

// starts is how often a program is started to say its version.
const starts = 15

// writeStarts compares the programs themselves: how large they are and what it costs to
// start them, which each step of a build pays several times.
func (p programs) writeStarts(out io.Writer) error {
	fmt.Fprint(out, "### start: the program says its version\n\n")
	writeHead(out, "", "size MB", "wall ms", "CPU ms", "peak MiB")
	lines := []struct{ name, path, argument string }{}
	for _, a := range p.agents {
		lines = append(lines, struct{ name, path, argument string }{a.name, a.path, "version"})
	}
	for _, peer := range []string{"buildah", "buildkitd", "buildctl"} {
		lines = append(lines, struct{ name, path, argument string }{peer, filepath.Join(p.peers, peer), "--version"})
	}
	for _, line := range append(lines, struct{ name, path, argument string }{"kaniko", filepath.Join(p.peers, "kaniko"), "version"}) {
		info, err := os.Stat(line.path)
		if err != nil {
			return err
		}
		var wall, cpu, peak []float64
		for range starts {
			c, err := measure.Run(io.Discard, line.path, line.argument)
			if err != nil {
				return err
			}
			wall = append(wall, c.Wall.Seconds()*1e3)
			cpu = append(cpu, c.CPU.Seconds()*1e3)
			peak = append(peak, float64(c.Peak)/1024)
		}
		writeLine(out, line.name, fmt.Sprintf("%.1f", float64(info.Size())/1e6), fmt.Sprintf("%.0f", median(wall)), fmt.Sprintf("%.0f", median(cpu)), fmt.Sprintf("%.0f", median(peak)))
	}
	fmt.Fprintln(out)
	return nil
}
