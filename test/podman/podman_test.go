package podman

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// machine is a user of this machine who runs podman.
type machine struct {
	name, uid string
	home      string // everything that podman keeps is here
	image     string // the image of the product, as podman calls it
}

var podman *machine

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if os.Geteuid() != 0 {
			fmt.Fprintln(os.Stderr, "the tests make a user who runs podman: run them as root")
			return 1
		}
		user, err := newMachine()
		if user != nil {
			defer user.remove()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		podman = user
		return m.Run()
	}())
}

// newMachine installs podman, makes the user, and loads the image of the product.
func newMachine() (*machine, error) {
	if err := install("podman", "crun", "uidmap", "passwd", "util-linux"); err != nil {
		return nil, err
	}
	archive, err := productImage()
	if err != nil {
		return nil, err
	}
	u := &machine{name: "strata-podman-" + strconv.Itoa(os.Getpid())}
	if _, err := command("useradd", "-K", "SUB_UID_COUNT=0", "-K", "SUB_GID_COUNT=0", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/bin/sh", u.name); err != nil {
		return nil, err
	}
	if u.uid, err = command("id", "-u", u.name); err != nil {
		return u, err
	}
	const ids = "1000000000-1000099999" // which nobody else has
	if _, err := command("usermod", "--add-subuids", ids, "--add-subgids", ids, u.name); err != nil {
		return u, err
	}
	if u.home, err = os.MkdirTemp("", "strata-podman-"); err != nil {
		return u, err
	}
	id, err := strconv.Atoi(u.uid)
	if err != nil {
		return u, err
	}
	for _, dir := range []string{u.home, filepath.Join(u.home, "run")} {
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, id, id)); err != nil {
			return u, err
		}
	}
	input := filepath.Join(u.home, "strata.tar")
	if _, err := command("install", "-o", u.uid, "-m", "0644", archive, input); err != nil {
		return u, err
	}
	loaded := u.run("load", "--quiet", "--input", input)
	_, image, found := strings.Cut(strings.TrimSpace(loaded.stdout), "Loaded image: ")
	if loaded.code != 0 || !found {
		return u, fmt.Errorf("podman does not load the image of the product: exit %d: %s %s", loaded.code, loaded.stdout, loaded.stderr)
	}
	u.image = image
	return u, nil
}

// productImage is the archive that `make image` writes.
func productImage() (string, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	if path := os.Getenv("STRATA_TEST_IMAGE"); path != "" {
		return path, nil
	}
	if out, err := command("make", "-C", root, "image"); err != nil {
		return "", fmt.Errorf("building the image of the product: %w: %s", err, out)
	}
	return filepath.Join(root, "dist/strata.tar"), nil
}

// remove takes away what podman left running, the user and all files.
func (u *machine) remove() {
	if u.home != "" {
		u.run("system", "migrate") // ends the process that keeps its namespaces
		if out, err := command("unshare", "-m", "rm", "-rf", "--one-file-system", u.home); err != nil {
			fmt.Fprintln(os.Stderr, "files are left behind:", err, out)
		}
	}
	if out, err := command("userdel", u.name); err != nil {
		fmt.Fprintln(os.Stderr, "the user is left behind:", err, out)
	}
}

// outcome is what a run of podman left.
type outcome struct {
	code           int
	stdout, stderr string
}

// run runs podman as the user, without any login: in a mount namespace in which
// /sys/fs/cgroup is that of version 2, whatever the machine has, since crun refuses a
// mixture of both, and with a directory for what podman keeps at run time.
func (u *machine) run(args ...string) outcome {
	const enter = `mount --make-rprivate / && mount -t cgroup2 none /sys/fs/cgroup && mount --make-shared / && cd / && exec "$@"`
	line := append([]string{
		"-m", "sh", "-c", enter, "sh",
		"setpriv", "--reuid", u.uid, "--regid", u.uid, "--init-groups", "--inh-caps=-all",
		"env", "-i", "PATH=" + os.Getenv("PATH"), "HOME=" + u.home, "XDG_RUNTIME_DIR=" + filepath.Join(u.home, "run"), "podman",
	}, args...)
	cmd := exec.Command("unshare", line...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	o := outcome{stdout: stdout.String(), stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		o.code = exit.ExitCode()
	case err != nil:
		o.code, o.stderr = -1, err.Error()
	}
	return o
}

// install installs the Debian packages that are missing.
func install(packages ...string) error {
	for _, name := range packages {
		if exec.Command("dpkg", "-s", name).Run() == nil {
			continue
		}
		cmd := exec.Command("apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends", name)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get install %s: %w: %s", name, err, out)
		}
	}
	return nil
}

func command(argv ...string) (string, error) {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}
