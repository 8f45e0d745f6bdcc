// Command agent builds an image from a Containerfile and pushes it. It is the
// entrypoint of a build pod, and runs as well on a laptop.
package main

import (
	"fmt"
	"os"

	"github.com/strata-build/strata/agent"
	"github.com/strata-build/strata/images"
)

func main() {
	if images.Reexec() {
		return
	}
	if err := images.EnsureHome(); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
	}
	os.Exit(int(execute(os.Args[1:], agent.Streams{Out: os.Stdout, Err: os.Stderr})))
}
