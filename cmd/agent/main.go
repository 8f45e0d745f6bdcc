// Command agent builds an image from a Containerfile and pushes it. It is the
// entrypoint of a build pod, and runs as well on a laptop.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/strata-build/strata/agent"
	"github.com/strata-build/strata/images"
)

func main() {
	if images.Reexec() {
		return
	}
	collectLate()
	images.BoundMemory()
	if err := images.EnsureHome(); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
	}
	os.Exit(int(execute(os.Args[1:], agent.Streams{Out: os.Stdout, Err: os.Stderr})))
}

// collectLate puts the first garbage collection off until the heap has 32 MiB (800
// percent of the runtime's least, 4 MiB), and is as usual from then on. A small build
// ends before: its collections would take more memory, by what they touch of the
// program's own data, than they would free.
func collectLate() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(800)
	runtime.AddCleanup(new([64]byte), func(percent int) { debug.SetGCPercent(percent) }, 100)
}
