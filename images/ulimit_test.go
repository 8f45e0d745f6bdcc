package images

import (
	"encoding/json"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/capability"
	"golang.org/x/sys/unix"
)

// limits is what a process is to clamp, and what it says of it.
type limits struct {
	// Hard are the hard limits of the process.
	NoFile, NProc uint64
	// Drop makes the process give up CAP_SYS_RESOURCE.
	Drop  bool
	Asked []string

	Ulimits, Warnings []string
	Error             string
	// Now is the limit of open files afterwards, and Raises whether it can be raised.
	Now    unix.Rlimit
	Raises bool
}

const limitsVariable = "STRATA_TEST_LIMITS"

func init() {
	processes["ulimits"] = func() any {
		runtime.LockOSThread() // capabilities are those of a thread
		var l limits
		if err := json.Unmarshal([]byte(os.Getenv(limitsVariable)), &l); err != nil {
			return limits{Error: err.Error()}
		}
		for kind, hard := range map[int]uint64{unix.RLIMIT_NOFILE: l.NoFile, unix.RLIMIT_NPROC: l.NProc} {
			if err := unix.Setrlimit(kind, &unix.Rlimit{Cur: hard, Max: hard}); err != nil {
				return limits{Error: "lowering a limit: " + err.Error()}
			}
		}
		if l.Drop {
			if err := dropCapability(capability.CAP_SYS_RESOURCE); err != nil {
				return limits{Error: "dropping a capability: " + err.Error()}
			}
		}
		var err error
		l.Ulimits, l.Warnings, err = clampUlimits(l.Asked)
		if err == nil {
			err = unix.Getrlimit(unix.RLIMIT_NOFILE, &l.Now)
		}
		if err != nil {
			l.Error = err.Error()
		}
		l.Raises = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 400, Max: 500000}) == nil
		return l
	}
}

func dropCapability(c capability.Cap) error {
	caps, err := capability.NewPid2(0)
	if err != nil {
		return err
	}
	if err := caps.Load(); err != nil {
		return err
	}
	caps.Unset(capability.EFFECTIVE|capability.PERMITTED|capability.INHERITABLE, c)
	return caps.Apply(capability.CAPS)
}

// clampedIn clamps in a process of its own.
func clampedIn(t *testing.T, attr *syscall.SysProcAttr, l limits, env ...string) limits {
	t.Helper()
	var got limits
	inProcess(t, "ulimits", attr, &got, append(env, limitsVariable+"="+string(encode(t, l)))...)
	return got
}

func TestLimitsWithoutTheCapabilityToRaiseThem(t *testing.T) {
	for _, s := range []struct {
		name              string
		asked             []string
		ulimits, warnings []string
	}{
		{"buildah's own", nil, []string{"nofile=400:400", "nproc=5000:5000"}, []string{"nofile=400 instead of 1048576", "nproc=5000 instead of 1048576"}},
		{"lower than the limit", []string{"nofile=200:300"}, []string{"nofile=200:300", "nproc=5000:5000"}, []string{"nproc=5000 instead of 1048576"}},
		{"one number", []string{"nofile=300"}, []string{"nofile=300:300", "nproc=5000:5000"}, []string{"nproc=5000 instead of 1048576"}},
		{"the limit itself", []string{"nofile=400:400", "nproc=5000"}, []string{"nofile=400:400", "nproc=5000:5000"}, nil},
		{"a hard limit that is too high", []string{"nofile=200:999", "nproc=1"}, []string{"nofile=200:400", "nproc=1:1"}, []string{"nofile=400 instead of 999"}},
		{"unlimited", []string{"nofile=-1:-1", "nproc=1"}, []string{"nofile=400:400", "nproc=1:1"}, []string{"nofile=400 instead of -1"}},
		{"the last mention counts", []string{"nofile=300", "nofile=200", "nproc=1"}, []string{"nofile=200:200", "nproc=1:1"}, nil},
		{"another limit", []string{"core=0", "nproc=1"}, []string{"nofile=400:400", "nproc=1:1", "core=0:0"}, []string{"nofile=400 instead of 1048576"}},
	} {
		t.Run(s.name, func(t *testing.T) {
			got := clampedIn(t, nil, limits{NoFile: 400, NProc: 5000, Drop: true, Asked: s.asked})
			if got.Error != "" || !slices.Equal(got.Ulimits, s.ulimits) || !slices.Equal(got.Warnings, s.warnings) {
				t.Errorf("%q with warnings %q and error %q; want %q with %q", got.Ulimits, got.Warnings, got.Error, s.ulimits, s.warnings)
			}
		})
	}
}

// In a user namespace of its own a process has every capability, but the kernel
// lets only CAP_SYS_RESOURCE of the first namespace raise a limit.
func TestLimitsInAUserNamespace(t *testing.T) {
	attr := &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	got := clampedIn(t, attr, limits{NoFile: 400, NProc: 5000})
	if want := []string{"nofile=400:400", "nproc=5000:5000"}; got.Error != "" || !slices.Equal(got.Ulimits, want) {
		t.Errorf("%q with error %q, want %q", got.Ulimits, got.Error, want)
	}
	if len(got.Warnings) != 2 {
		t.Errorf("warnings %q, want one for each limit", got.Warnings)
	}
}

// Whether a process with every capability that this one has may raise its limits
// is up to the machine; the steps get what they ask for exactly where it may.
func TestLimitsAreThoseAskedForWhereTheyCanBeRaised(t *testing.T) {
	got := clampedIn(t, nil, limits{NoFile: 400, NProc: 5000, Asked: []string{"nofile=600:500000", "nproc=1"}})
	want := "nofile=400:400"
	if got.Raises {
		want = "nofile=600:500000"
	}
	if got.Error != "" || len(got.Ulimits) != 2 || got.Ulimits[0] != want {
		t.Errorf("%q with error %q, want %s, since the limit can be raised: %t", got.Ulimits, got.Error, want, got.Raises)
	}
	if (len(got.Warnings) == 0) != got.Raises {
		t.Errorf("warnings %q, where the limit can be raised: %t", got.Warnings, got.Raises)
	}
}

func TestLimitsOfTheProcessStayAsTheyAre(t *testing.T) {
	got := clampedIn(t, nil, limits{NoFile: 400, NProc: 5000})
	if got.Now != (unix.Rlimit{Cur: 400, Max: 400}) {
		t.Errorf("the limit of open files is %+v afterwards, want 400", got.Now)
	}
}

func TestLimitsOfContainersConf(t *testing.T) {
	conf := write(t, t.TempDir()+"/containers.conf", "[containers]\ndefault_ulimits = [\"nofile=300:350\", \"nproc=2000:2000\"]\n")
	got := clampedIn(t, nil, limits{NoFile: 400, NProc: 5000, Drop: true}, "CONTAINERS_CONF="+conf)
	if want := []string{"nofile=300:350", "nproc=2000:2000"}; got.Error != "" || !slices.Equal(got.Ulimits, want) {
		t.Errorf("%q with error %q, want those of containers.conf, %q", got.Ulimits, got.Error, want)
	}
	got = clampedIn(t, nil, limits{NoFile: 400, NProc: 5000, Drop: true, Asked: []string{"nofile=10:20"}}, "CONTAINERS_CONF="+conf)
	if want := []string{"nofile=10:20", "nproc=2000:2000"}; got.Error != "" || !slices.Equal(got.Ulimits, want) {
		t.Errorf("%q with error %q, want the flag before containers.conf, %q", got.Ulimits, got.Error, want)
	}
	broken := write(t, t.TempDir()+"/containers.conf", "[containers\n")
	got = clampedIn(t, nil, limits{NoFile: 400, NProc: 5000, Drop: true}, "CONTAINERS_CONF="+broken)
	if !strings.Contains(got.Error, "containers.conf") || !strings.Contains(got.Error, broken) {
		t.Errorf("error %q, want one that names %s", got.Error, broken)
	}
}

func TestLimitsThatAreNone(t *testing.T) {
	for _, spec := range []string{"nofile", "nofile=", "nofile=x", "files=1", "nofile=20:10", "=1"} {
		if _, _, err := clampUlimits([]string{spec}); err == nil || !strings.Contains(err.Error(), spec) {
			t.Errorf("%q: error %v, want one that names it", spec, err)
		}
	}
}
