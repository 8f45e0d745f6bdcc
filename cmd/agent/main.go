// Command agent builds an image from a Containerfile and pushes it. It is the
// entrypoint of a build pod, and runs as well on a laptop.
package main

import (
	"os"

	"github.com/strata-build/strata/agent"
	"github.com/strata-build/strata/images"
)

func main() {
	if images.Reexec() {
		return
	}
	os.Exit(int(execute(os.Args[1:], agent.Streams{Out: os.Stdout, Err: os.Stderr})))
}
