package images

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/docker/go-units"
	"go.podman.io/common/pkg/config"
	"golang.org/x/sys/unix"
)

// stepLimit is the number of open files and of processes that buildah asks for
// where nobody says otherwise (run_linux.go, as RLIMIT_NOFILE and RLIMIT_NPROC).
const stepLimit = 1048576

// clampUlimits returns the limits for RUN steps such that each can be set: without
// CAP_SYS_RESOURCE, and in a user namespace even with it, a hard limit cannot be
// raised, and a step that asks for it fails before it starts. The warnings say
// what was lowered, the error where what is wrong was found.
func clampUlimits(asked []string) (ulimits, warnings []string, err error) {
	conf, err := config.Default()
	if err != nil {
		return nil, nil, fmt.Errorf("the configuration of containers cannot be read: %w", err)
	}
	// The last mention of a limit counts, so that flags override containers.conf.
	specs := slices.Concat(
		[]string{fmt.Sprintf("nofile=%d:%d", stepLimit, stepLimit), fmt.Sprintf("nproc=%d:%d", stepLimit, stepLimit)},
		conf.Containers.DefaultUlimits.Get(), asked)
	order := []string{}
	limits := map[string]*units.Ulimit{}
	for _, spec := range specs {
		u, err := units.ParseUlimit(spec)
		if err != nil { // those of containers.conf were looked at when it was read
			return nil, nil, fmt.Errorf("--ulimit: ulimit %q: %w", spec, err)
		}
		if limits[u.Name] == nil {
			order = append(order, u.Name)
		}
		limits[u.Name] = u
	}
	for _, name := range order {
		u := limits[name]
		if warning, err := clampUlimit(u); err != nil {
			return nil, nil, err
		} else if warning != "" {
			warnings = append(warnings, warning)
		}
		ulimits = append(ulimits, u.String())
	}
	return ulimits, warnings, nil
}

// lookAtLimits says which limits steps get that are lower than those asked for. A
// build says so itself, when it has steps.
func (e *Engine) lookAtLimits() (Finding, error) {
	_, warnings, err := clampUlimits(e.config.Ulimits)
	if err != nil {
		return Finding{}, invalid("the limits of RUN steps", err)
	}
	if len(warnings) > 0 {
		return ok("RUN steps get %s, since this process may not raise its own limits (no CAP_SYS_RESOURCE)", strings.Join(warnings, ", ")), nil
	}
	return ok("RUN steps get the limits that are asked for"), nil
}

func clampUlimit(u *units.Ulimit) (warning string, err error) {
	r, err := u.GetRlimit()
	if err != nil {
		return "", fmt.Errorf("ulimit %s: %w", u.Name, err)
	}
	var have unix.Rlimit
	if err := unix.Getrlimit(r.Type, &have); err != nil {
		return "", fmt.Errorf("reading the limit %s of this process: %w", u.Name, err)
	}
	if r.Hard <= have.Max || canRaise(r.Type, have, r.Hard) {
		return "", nil
	}
	asked, hard := u.Hard, int64(have.Max) //nolint:gosec // below a limit that was parsed as int64
	u.Soft, u.Hard = min(u.Soft, hard), hard
	if u.Soft < 0 {
		u.Soft = hard
	}
	return fmt.Sprintf("%s=%d instead of %d", u.Name, hard, asked), nil
}

// canRaise tries to raise a hard limit of this process, and puts it back. The
// system call is made directly: the runtime would take a changed limit of open
// files for one that its children are to have.
func canRaise(kind int, have unix.Rlimit, hard uint64) bool {
	raised := unix.Rlimit{Cur: have.Cur, Max: hard}
	set := func(limit *unix.Rlimit) bool {
		_, _, errno := unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, uintptr(kind), uintptr(unsafe.Pointer(limit)), 0, 0, 0) //nolint:gosec // as prlimit(2) wants it
		return errno == 0
	}
	return set(&raised) && set(&have)
}
