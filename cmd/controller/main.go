// Command controller builds the operating system images of a cluster: it makes
// MachineOSBuilds of MachineOSConfigs and runs the agent for each in a Job.
package main

import (
	"fmt"
	"os"
	"runtime/debug"

	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	collectOften()
	if err := newCommand().ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

// collectOften keeps the memory small: what lives is a few megabytes of caches, and
// what rendering leaves behind is to go before as much again has come. Both can be
// set in the environment.
func collectOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(40)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(40 << 20)
	}
}
