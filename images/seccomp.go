package images

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"go.podman.io/buildah/pkg/parse"
	"go.podman.io/common/pkg/config"
	"golang.org/x/sys/unix"
)

// unconfined is buildah's word for a step without a seccomp filter.
const unconfined = "unconfined"

// CheckSecurityOpt says what is wrong with what confines RUN steps: seccomp=PATH is
// the profile in a file, seccomp=unconfined none.
func CheckSecurityOpt(options []string) error {
	for _, o := range options {
		value, found := strings.CutPrefix(o, "seccomp=")
		switch {
		case !found || value == "":
			return fmt.Errorf("%q is neither seccomp=unconfined nor seccomp=PATH", o)
		case value == unconfined:
			continue
		}
		if _, err := os.ReadFile(value); err != nil {
			return fmt.Errorf("the seccomp profile cannot be read: %w", err)
		}
	}
	return nil
}

// seccompProfile is the profile of RUN steps: a path, unconfined, or empty for the
// built-in one. It is found as buildah finds it: what is asked for, then
// containers.conf, then the two usual places.
func seccompProfile(options []string) (string, error) {
	for i := len(options) - 1; i >= 0; i-- { // the last one counts
		if value, found := strings.CutPrefix(options[i], "seccomp="); found {
			return value, nil
		}
	}
	conf, err := config.Default()
	if err != nil {
		return "", invalid("containers.conf cannot be read", err)
	}
	if profile := conf.Containers.SeccompProfile; profile != "" && profile != parse.SeccompDefaultPath {
		return profile, nil
	}
	for _, path := range []string{parse.SeccompOverridePath, parse.SeccompDefaultPath} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", nil
}

// lookAtSeccomp chooses the seccomp profile of RUN steps, and tries whether a filter
// can be put in force at all.
func (e *Engine) lookAtSeccomp() (Finding, error) {
	if err := CheckSecurityOpt(e.config.SecurityOpts); err != nil {
		return Finding{}, invalid("--security-opt", err)
	}
	var err error
	if e.seccomp, err = seccompProfile(e.config.SecurityOpts); err != nil {
		return Finding{}, err
	}
	if e.seccomp == unconfined {
		return ok("RUN steps are unconfined, as asked for"), nil
	}
	if err := tryFilter(); err != nil {
		asked := e.seccomp
		e.seccomp = unconfined
		f := warning("RUN steps are unconfined: this process may not put a seccomp filter in force (%v)", err)
		if len(e.config.SecurityOpts) > 0 {
			return Finding{}, invalid("--security-opt seccomp="+asked, fmt.Errorf("a seccomp filter cannot be put in force here (%w): leave it out, or use seccomp=unconfined", err))
		}
		return f.hinted("nothing needs to be done; --security-opt seccomp=unconfined says that it is known"), nil
	}
	if e.seccomp == "" {
		return ok("RUN steps get the built-in profile of buildah"), nil
	}
	return ok("RUN steps get the profile %s", e.seccomp), nil
}

// tryFilter puts a filter that allows everything in force, on a thread that ends with
// this call.
func tryFilter() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends, and its filter
		allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
		program := unix.SockFprog{Len: 1, Filter: &allow}
		_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))) //nolint:gosec // as seccomp(2) wants it
		if errno != 0 {
			done <- errno
			return
		}
		done <- nil
	}()
	return <-done
}
