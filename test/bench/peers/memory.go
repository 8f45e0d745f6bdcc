package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// limitMemory makes a control group with a limit in bytes, of the version that this
// machine has, and returns its directory and how to remove it. For the limit 0 there is
// none.
func limitMemory(limit int) (dir string, end func() error, err error) {
	if limit == 0 {
		return "", func() error { return nil }, nil
	}
	parent, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(parent); err != nil {
		parent, file = "/sys/fs/cgroup", "memory.max"
	}
	dir = filepath.Join(parent, fmt.Sprint("strata-bench-", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(limit)), 0); err != nil {
		return "", nil, errors.Join(fmt.Errorf("memory cannot be limited here: %w", err), os.Remove(dir))
	}
	return dir, func() error { return removeGroup(dir) }, nil
}

// removeGroup removes a control group; the kernel takes a moment to let go of processes
// that have ended.
func removeGroup(dir string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 200 {
		if err := os.Remove(dir); !errors.Is(err, syscall.EBUSY) {
			return err
		}
		<-tick.C
	}
	return fmt.Errorf("%s has processes that do not end", dir)
}
