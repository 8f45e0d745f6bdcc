package bases

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// busybox is a static busybox and the names of its applets.
type busybox struct {
	program []byte
	applets []string
}

var busyboxPaths = []string{"/bin/busybox", "/usr/bin/busybox"}

// findBusybox looks once in a process.
var findBusybox = sync.OnceValues(func() (*busybox, error) {
	b, err := lookForBusybox()
	if err == nil {
		return b, nil
	}
	install := exec.Command("apt-get", "-o", "DPkg::Lock::Timeout=120", "install", "-y", "busybox-static")
	install.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, failed := install.CombinedOutput(); failed != nil {
		return nil, fmt.Errorf("%w; apt-get install: %w: %s", err, failed, bytes.TrimSpace(out))
	}
	return lookForBusybox()
})

func mustBusybox(t testing.TB) *busybox {
	t.Helper()
	b, err := findBusybox()
	if err != nil {
		t.Fatalf("bases: no static busybox, please install the package busybox-static: %v", err)
	}
	return b
}

func lookForBusybox() (*busybox, error) {
	var failures []error
	for _, path := range busyboxPaths {
		b, err := readBusybox(path)
		if err == nil {
			return b, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

func readBusybox(path string) (*busybox, error) {
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := checkStatic(program); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	list, err := exec.Command(path, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", path, err)
	}
	b := &busybox{program: program}
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			b.applets = append(b.applets, applet)
		}
	}
	return b, nil
}

// checkStatic returns an error unless the program runs without an interpreter
// from outside.
func checkStatic(program []byte) error {
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return err
	}
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return errors.New("not a static program")
		}
	}
	return nil
}
