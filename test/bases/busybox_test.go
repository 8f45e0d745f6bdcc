package bases

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// TestStatic takes a program that surely needs an interpreter, if the compiler
// makes one, and one that does not.
func TestStatic(t *testing.T) {
	if err := checkStatic(mustBusybox(t).program); err != nil {
		t.Errorf("busybox: %v", err)
	}
	if err := checkStatic([]byte("#!/bin/sh\n")); err == nil {
		t.Error("a script passes for a static program")
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(shell)
	if err != nil {
		t.Fatal(err)
	}
	if resolved, _ := filepath.EvalSymlinks(shell); filepath.Base(resolved) == "busybox" {
		return // a machine where the shell itself is busybox
	}
	if err := checkStatic(program); err == nil {
		t.Errorf("%s passes for a static program", shell)
	}
}

// TestRuns runs the program of NoShell by the name that it has there.
func TestRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "echo")
	if err := os.WriteFile(path, mustBusybox(t).program, 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "some", "words").CombinedOutput()
	if err != nil || string(out) != "some words\n" {
		t.Errorf("%q, error %v", out, err)
	}
}

// TestSameLayerTwice shows that a layer depends on its entries alone.
func TestSameLayerTwice(t *testing.T) {
	digest := func(body string) v1.Hash {
		d, err := layer(t, types.DockerLayer, []Entry{Dir("/a", 0o755), Regular("/a/b", 0o644, []byte(body)), Symlink("/c", "a/b")}).Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if one, two := digest("x"), digest("x"); one != two {
		t.Errorf("the same entries made the layers %s and %s", one, two)
	}
	if digest("x") == digest("y") {
		t.Error("other entries made the same layer")
	}
}
