package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

// severalIDs is a build that needs more ids than one, from its base on.
var severalIDs = []string{
	"FROM HOST/base/busy:1", "COPY a /a",
	"RUN chown 1234:4321 /a && chmod 4755 /a && mkdir -m 700 /d && chown 5:5 /d",
	"RUN test $(stat -c %u:%g:%a /a) = 1234:4321:4755 && rm /a && echo b > /d/b",
	"USER 1000:1000", "RUN test $(id -u) = 1000",
}

// sandboxLab is a lab with that build.
func sandboxLab(t *testing.T) *lab {
	t.Helper()
	l := newLab(t).withBusy()
	l.containerfile(severalIDs...)
	l.file("context/a", "a\n")
	return l
}

// wantNoSandbox runs a build that cannot work, and checks that it ends at once and
// says why: before any request, in less than two seconds, with the texts in its message.
func (l *lab) wantNoSandbox(texts ...string) string {
	l.t.Helper()
	o := l.build()
	if l.t.Failed() || o.result == nil {
		l.t.Fatalf("exit %d: %s", o.code, o.stderr)
	}
	o.wantFailure(l.t, result.ReasonUserNamespaceUnavailable, texts...)
	if o.took > 2*time.Second {
		l.t.Errorf("it took %v, more than 2 s", o.took)
	}
	if n := len(l.registry.Requests()); n != 0 {
		l.t.Errorf("%d requests reached the registry", n)
	}
	if n := o.attempts(result.Prepare); len(o.result.Attempts) != 1 || n > 1 {
		l.t.Errorf("%d attempts are on record", len(o.result.Attempts))
	}
	line := append(slices.Clone(l.wrap), agentBinary, "version")
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = l.env
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Errorf("agent version does not work: %v: %s", err, out)
	}
	return o.result.Message
}

// different checks that no two of the messages are the same.
func different(t *testing.T, messages map[string]string) {
	t.Helper()
	seen := map[string]string{}
	for name, message := range messages {
		if other, found := seen[message]; found {
			t.Errorf("%q and %q have the same message: %s", name, other, message)
		}
		seen[message] = name
	}
}

// TestE01NoUserNamespace has the kernel refuse user namespaces in several ways.
func TestE01NoUserNamespace(t *testing.T) {
	install(t, "util-linux")
	_, uid := user(t, "700000-765535")
	messages := map[string]string{}
	t.Run("seccomp", func(t *testing.T) {
		l := sandboxLab(t)
		l.wrap = append(refusing(t), l.hand(uid)...)
		messages[t.Name()] = l.wantNoSandbox("seccomp", "unshare(CLONE_NEWUSER)", "To mend it: ")
	})
	t.Run("seccomp and no range of ids", func(t *testing.T) {
		l := sandboxLab(t)
		l.wrap = append(append(refusing(t), l.hand(uid)...), "env", "PATH=/nonexistent")
		// More ids would not help.
		l.wantNoSandbox("seccomp", "unshare(CLONE_NEWUSER)")
	})
	t.Run("sysctl", func(t *testing.T) {
		l := sandboxLab(t)
		l.wrap = append(append(mapped(t, "0:800000"),
			"sh", "-c", `echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"`, "sh"), l.hand(uid)...)
		messages[t.Name()] = l.wantNoSandbox("user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=")
	})
	t.Run("chroot", func(t *testing.T) {
		l := sandboxLab(t)
		l.mkdir("root")
		l.wrap = append([]string{"unshare", "-m", "sh", "-c", `cd "$0/root" && for d in /*; do
			if test -L $d; then cp -a $d .; elif test -d $d; then mkdir -p .$d && mount --rbind $d .$d; fi; done; exec chroot . "$@"`, l.dir}, l.hand(uid)...)
		messages[t.Name()] = l.wantNoSandbox("chroot", "To mend it: ")
	})
	t.Run("root without the capability to map", func(t *testing.T) {
		l := sandboxLab(t)
		l.wrap = []string{"setpriv", "--bounding-set=-all,+setuid,+setgid"}
		messages[t.Name()] = l.wantNoSandbox("SETFCAP", "capabilities: {add: [SETUID, SETGID, SETFCAP]}")
	})
	t.Run("root that may mount and nothing else", func(t *testing.T) {
		l := sandboxLab(t)
		l.wrap = []string{"setpriv", "--bounding-set=-all,+sys_admin"}
		messages[t.Name()] = l.wantNoSandbox("CAP_SYS_ADMIN", "add: [CHOWN, DAC_OVERRIDE,")
	})
	t.Run("a single id", func(t *testing.T) {
		l := sandboxLab(t)
		l.wrap = []string{"unshare", "--user", "--map-root-user", "--mount"}
		messages[t.Name()] = l.wantNoSandbox("single id")
	})
	t.Run("root that may not mount", func(t *testing.T) {
		l := sandboxLab(t)
		l.wrap = refusing(t)
		messages[t.Name()] = l.wantNoSandbox("seccomp", "unshare(CLONE_NEWNS)")
	})
	different(t, messages)
}

// TestE03NoIDs runs as an ordinary user whom newuidmap cannot help, each time for
// another cause.
func TestE03NoIDs(t *testing.T) {
	install(t, "libcap2-bin")
	name, uid := user(t, "700000-765535")
	messages := map[string]string{}
	for _, c := range []struct {
		name string
		// before and after the change of the user.
		before, after []string
		// bounded is set where the user can get no capability whatsoever.
		bounded bool
		want    []string
	}{
		{
			name:  "newuidmap absent",
			after: []string{"env", "PATH=/nonexistent"},
			want:  []string{"newuidmap", "is not installed"},
		},
		{
			name:   "no_new_privs",
			before: []string{"setpriv", "--no-new-privs"},
			want:   []string{"no_new_privs"},
		},
		{
			name:  "neither setuid nor file capabilities",
			after: []string{"env", "PATH=HELPERS/lost"},
			want:  []string{"HELPERS/lost/new", "lost its privilege", "setcap cap_set"},
		},
		{
			name:   "setuid root in a container",
			before: []string{"setpriv", "--bounding-set=-all,+setuid,+setgid"},
			want:   []string{"setuid root", "CAP_SYS_ADMIN", "setcap cap_set"},
		},
		{
			name:    "file capabilities that the container withholds",
			after:   []string{"env", "PATH=HELPERS/capable"},
			bounded: true,
			want:    []string{"has the file capability", "SETUID"},
		},
		{
			name: "nosuid",
			before: []string{
				"unshare", "-m", "sh", "-c",
				`mount -t tmpfs -o nosuid,mode=755 tmpfs HELPERS/nosuid && cp -p /usr/bin/new?idmap HELPERS/nosuid && exec "$@"`, "sh",
			},
			after: []string{"env", "PATH=HELPERS/nosuid"},
			want:  []string{"nosuid"},
		},
		{
			name:   "range outside of the ids of the container",
			before: mapped(t, "0:65536"),
			want:   []string{"700000:65536", "outside", "0-65535", "/etc/subuid"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := sandboxLab(t)
			helpers := l.helpers()
			user := l.hand(uid)
			if c.bounded {
				user = append(user, "--bounding-set=-all")
			}
			command(t, "chown", "-R", "0:0", helpers)
			l.privilege(helpers)
			for _, part := range [][]string{c.before, user, c.after} {
				for _, word := range part {
					l.wrap = append(l.wrap, strings.ReplaceAll(word, "HELPERS", helpers))
				}
			}
			for i := range c.want {
				c.want[i] = strings.ReplaceAll(c.want[i], "HELPERS", helpers)
			}
			messages[c.name] = strings.ReplaceAll(l.wantNoSandbox(append(c.want, "To mend it: ")...), l.dir, "")
		})
	}
	t.Run("neither an entry in passwd nor another privilege", func(t *testing.T) {
		l := sandboxLab(t)
		helpers := l.helpers()
		as := l.hand("1000660000")
		l.privilege(helpers)
		l.wrap = append([]string{"setpriv", "--no-new-privs"}, as...)
		l.wantNoSandbox("no_new_privs")
		l.wrap = append(as, "env", "PATH="+helpers+"/lost")
		l.wantNoSandbox("lost its privilege")
	})
	t.Run("no entry in passwd", func(t *testing.T) {
		l := sandboxLab(t)
		l.wrap = l.hand("1000660000")
		messages["no entry in passwd"] = l.wantNoSandbox("uid 1000660000", "/etc/passwd", "To mend it: ")
	})
	command(t, "usermod", "--del-subgids", "700000-765535", name)
	t.Run("no range of groups", func(t *testing.T) {
		l := sandboxLab(t)
		l.wrap = l.hand(uid)
		messages["no range"] = l.wantNoSandbox(name, "/etc/subgid", "To mend it: ")
	})
	different(t, messages)
}

// helpers makes directories for copies of newuidmap and newgidmap, and returns the
// one above them.
func (l *lab) helpers() string {
	l.t.Helper()
	for _, dir := range []string{"lost", "capable", "nosuid"} {
		l.mkdir("helpers/" + dir)
	}
	return filepath.Join(l.dir, "helpers")
}

// privilege fills the directories: one with copies that have lost their privilege,
// one with copies that have it as file capabilities.
func (l *lab) privilege(helpers string) {
	l.t.Helper()
	for _, dir := range []string{"lost", "capable"} {
		for helper, c := range map[string]string{"newuidmap": "cap_setuid+ep", "newgidmap": "cap_setgid+ep"} {
			path := filepath.Join(helpers, dir, helper)
			command(l.t, "cp", "--no-preserve=all", "/usr/bin/"+helper, path)
			if err := os.Chmod(path, 0o755); err != nil {
				l.t.Fatal(err)
			}
			if dir == "capable" {
				command(l.t, "setcap", c, path)
			}
		}
	}
}

// TestSandboxesThatBuild builds in every sandbox that allows it, and checks which
// one was found.
func TestSandboxesThatBuild(t *testing.T) {
	install(t, "libcap2-bin", "util-linux")
	_, uid := user(t, "700000-765535")
	// What belongs to the machine's root there would not be seen in a pod.
	pod := append(mapped(t, "700000:65536"), "sh", "-c", `mount -t tmpfs tmpfs /var && exec "$@"`, "sh")
	for _, c := range []struct {
		name          string
		before, after []string
		root          bool
		args          []string
		userns        string
		line          string
	}{
		{
			name: "root", root: true,
			userns: "none", line: "User namespace: none is needed: root with CAP_SYS_ADMIN",
		},
		{
			name: "root with three capabilities", root: true, before: []string{"setpriv", "--bounding-set=-all,+setuid,+setgid,+setfcap", "--no-new-privs"},
			userns: "own", line: "User namespace: one made here, with the ",
		},
		{
			name: "root in a namespace of the pod", root: true, before: pod,
			userns: "pod", line: "User namespace: that of the pod, with 65536 ids",
		},
		{
			name: "root in a namespace of the pod with three capabilities", root: true,
			before: append(slices.Clone(pod), "setpriv", "--bounding-set=-all,+setuid,+setgid,+setfcap", "--no-new-privs"),
			userns: "own", line: "User namespace: one made here, with the 65536 ids",
		},
		{
			name:   "user with newuidmap",
			userns: "own", line: "User namespace: one made here, with 65537 ids that newuidmap gives ",
		},
		{
			name: "user with the file capabilities of newuidmap", before: []string{"setpriv", "--bounding-set=-all,+setuid,+setgid"}, after: []string{"env", "PATH=HELPERS/capable"},
			userns: "own", line: "User namespace: one made here, with 65537 ids that newuidmap gives ",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := sandboxLab(t)
			var as []string
			helpers := l.helpers()
			switch {
			case !c.root:
				as = l.hand(uid)
			case slices.Contains(c.before, mapVariable+"=700000:65536"):
				l.hand("700000")
			}
			command(t, "chown", "-R", "0:0", helpers)
			l.privilege(helpers)
			for _, part := range [][]string{c.before, as, c.after} {
				for _, word := range part {
					l.wrap = append(l.wrap, strings.ReplaceAll(word, "HELPERS", helpers))
				}
			}
			o := l.build(c.args...)
			o.wantSuccess(t)
			o.wantLine(t, c.line)
			o.wantLine(t, "Storage: native overlay on ")
			o.wantLine(t, "Isolation: chroot")
			if got := o.result.Sandbox.UserNS; got != c.userns {
				t.Errorf("userns %q, want %q", got, c.userns)
			}
		})
	}
}

// usualInCRIO are the capabilities that CRI-O gives a container that asks for none.
const usualInCRIO = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+net_bind_service,+setgid,+setpcap,+setuid"

// TestRootOfAPodWithoutSETFCAP builds as root in a pod of OpenShift does, whose runtime
// gives no capability to map root's id: with the others, where what it needs is open.
func TestRootOfAPodWithoutSETFCAP(t *testing.T) {
	install(t, "util-linux")
	l := sandboxLab(t)
	t.Run("where the context is root's alone", func(t *testing.T) {
		l.wrap = []string{"env", "container=oci", "setpriv", "--bounding-set=" + usualInCRIO}
		l.wantNoSandbox("SETFCAP", "capabilities: {add: [SETUID, SETGID, SETFCAP]}") // the directory of the test is
	})
	command(t, "chmod", "-R", "a+rwX", filepath.Dir(l.dir))
	for name, set := range map[string]string{"CRI-O": usualInCRIO, "least": "-all,+setuid,+setgid"} {
		t.Run(name, func(t *testing.T) {
			l.newStore()
			l.wrap = []string{"env", "container=oci", "setpriv", "--bounding-set=" + set, "--no-new-privs"}
			o := l.build()
			o.wantSuccess(t)
			o.wantLine(t, "Warning: the user namespace has the 4294967294 ids that this process has beside root's, since CAP_SETFCAP is missing")
			o.wantLine(t, "Storage: native overlay on ")
			if got := o.result.Sandbox.UserNS; got != "own" {
				t.Errorf("userns %q", got)
			}
			if uid, _ := owner(t, filepath.Join(l.store, "overlay")); uid != 1 {
				t.Errorf("the store belongs to %d, want the first id beside root's", uid)
			}
		})
	}
}

// TestContextOfSomebodyElse has a context that belongs to the machine's root, whom the
// user namespace of a user knows not; nor has it the id that stands for the unknown.
func TestContextOfSomebodyElse(t *testing.T) {
	_, uid := user(t, "700000-749999")
	l := sandboxLab(t)
	l.file("context/dir/b", "b\n")
	link(t, "dir/b", filepath.Join(l.context, "link"))
	l.containerfile("FROM HOST/base/busy:1", "COPY . /in", "RUN test \"$(cat /in/a /in/link)\" = \"$(printf 'a\\nb')\" && test $(stat -c %u:%g /in/a) = 0:0")
	l.wrap = l.hand(uid)
	command(t, "chown", "-R", "0:0", l.context)
	o := l.build()
	o.wantSuccess(t)
	o.wantLine(t, "The build context belongs to somebody who has no id here: a copy of it is used")
}

func TestSingleIDOnlyWhenAsked(t *testing.T) {
	_, uid := user(t, "")
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN id -u > /id && ! chown 12:34 /id", "RUN test $(cat /id) = 0")
	l.wrap = l.hand(uid)
	l.wantNoSandbox("/etc/subuid")
	o := l.build("--single-id")
	o.wantSuccess(t)
	o.wantLine(t, "Warning: the user namespace has a single id, as --single-id allows")
	if o.result.Sandbox.UserNS != "single" {
		t.Errorf("userns %q", o.result.Sandbox.UserNS)
	}
	l = newLab(t)
	l.addBase("base/owner:1", bases.Owner(t))
	l.containerfile("FROM HOST/base/owner:1", "RUN true")
	l.wrap = l.hand(uid)
	l.build("--single-id").wantSuccess(t)
}

// TestE04StoreOnAnyFilesystem puts the store on one filesystem after the other, twice
// each, and checks which driver was found.
func TestE04StoreOnAnyFilesystem(t *testing.T) {
	install(t, "fuse-overlayfs")
	const (
		onOverlay = `mkdir lower upper work && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work mnt`
		hideFuse  = `touch empty && mount --bind empty /dev/fuse`
	)
	for _, c := range []struct {
		name, mount, driver string
		lines               []string
	}{
		{"ext4 or what the machine has", "true", "overlay", []string{"Storage: native overlay on "}},
		{"tmpfs", "mount -t tmpfs tmpfs mnt", "overlay", []string{"Storage: native overlay on tmpfs at "}},
		{
			"overlay with fuse", onOverlay, "overlay",
			[]string{"Storage: overlay by /usr/bin/fuse-overlayfs on overlay at "},
		},
		{
			"overlay without fuse", onOverlay + " && " + hideFuse, "vfs",
			[]string{"Warning: the store uses vfs, which copies every layer in full", "Warning: overlay at "},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := sandboxLab(t)
			l.mkdir("mnt")
			l.bare = true
			l.wrap = []string{"unshare", "-m", "sh", "-c", `cd "$0" && ` + c.mount + ` && for i in 1 2; do "$@" || exit $?; done`, l.dir}
			o := l.build("--storage-root", filepath.Join(l.dir, "mnt/store"), "--result", filepath.Join(l.dir, "result.json"), "--tls-verify=false",
				"--retry-delay", "50ms", "--tag", l.image("os/store:1"), "--push", "--no-cache", l.context)
			o.wantSuccess(t)
			for _, line := range c.lines {
				if n := strings.Count("\n"+o.stderr, "\n"+line); n != 2 {
					t.Errorf("%d lines begin with %q, want one in each of two builds", n, line)
				}
			}
			if got := o.result.Sandbox.Storage; got != c.driver {
				t.Errorf("storage %q, want %q", got, c.driver)
			}
			if want := l.registry.Digest(t, "os/store", "1"); o.result.Digest != want {
				t.Errorf("digest %s, want %s", o.result.Digest, want)
			}
		})
	}
}

// TestE04StoreThatCannotBeWritten ends at once, with the path, and says what is wrong.
func TestE04StoreThatCannotBeWritten(t *testing.T) {
	_, uid := user(t, "700000-765535")
	for _, c := range []struct {
		name, prepare string
		asUser        bool
		reason        result.Reason
		want          []string
	}{
		{
			name: "read-only", prepare: "mount -t tmpfs tmpfs mnt && mount -o remount,ro mnt",
			reason: result.ReasonStorageUnavailable, want: []string{"LAB/mnt/store", "read-only", "(tmpfs)"},
		},
		{
			name: "full", prepare: "mount -t tmpfs -o size=1m tmpfs mnt && ! dd if=/dev/zero of=mnt/file bs=4k 2>/dev/null",
			reason: result.ReasonNoSpace, want: []string{"LAB/mnt/store", "the filesystem at LAB/mnt (tmpfs) is full", "0 B of 1.0 MiB"},
		},
		{
			name: "out of inodes", prepare: "mount -t tmpfs -o nr_inodes=8 tmpfs mnt && ! touch mnt/1 mnt/2 mnt/3 mnt/4 mnt/5 mnt/6 mnt/7 mnt/8 2>/dev/null",
			reason: result.ReasonNoSpace, want: []string{"LAB/mnt/store", "out of inodes", "all 8 are used"},
		},
		{
			name: "a file", prepare: "touch mnt/store",
			reason: result.ReasonStorageUnavailable, want: []string{"LAB/mnt/store", "not a directory"},
		},
		{
			name: "of another user", prepare: "chown 0:0 mnt && chmod 755 mnt", asUser: true,
			reason: result.ReasonStorageUnavailable, want: []string{"LAB/mnt/store", "permission denied", "uid " + uid},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := sandboxLab(t)
			l.mkdir("mnt")
			l.bare = true
			l.wrap = []string{"unshare", "-m", "sh", "-c", `cd "$0" && { ` + c.prepare + `; } && exec "$@"`, l.dir}
			if c.asUser {
				l.wrap = append(l.wrap, l.hand(uid)...)
			}
			o := l.build("--storage-root", filepath.Join(l.dir, "mnt/store"), "--result", filepath.Join(l.dir, "result.json"), "--tls-verify=false", l.context)
			want := append([]string{"To mend it: "}, c.want...)
			for i := range want {
				want[i] = strings.ReplaceAll(want[i], "LAB", l.dir)
			}
			o.wantFailure(t, c.reason, want...)
			if n := len(l.registry.Requests()); n != 0 {
				t.Errorf("%d requests reached the registry", n)
			}
			if o.took > 2*time.Second {
				t.Errorf("it took %v, more than 2 s", o.took)
			}
		})
	}
}

// TestDriverThatIsNamed is not replaced by another one.
func TestDriverThatIsNamed(t *testing.T) {
	l := sandboxLab(t)
	l.mkdir("mnt")
	l.bare = true
	l.wrap = []string{"unshare", "-m", "sh", "-c", `cd "$0" && mkdir lower upper work && touch empty && mount --bind empty /dev/fuse &&
		mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work mnt && PATH=/bin exec "$@"`, l.dir}
	o := l.build("--storage-root", filepath.Join(l.dir, "mnt/store"), "--result", filepath.Join(l.dir, "result.json"), "--storage-driver", "overlay", l.context)
	o.wantFailure(t, result.ReasonStorageUnavailable, l.dir+"/mnt/store", "overlay", "name no driver")
}

// TestReadOnlyRoot builds where nothing but the store can be written to, as with
// readOnlyRootFilesystem, without HOME, as root and as a user.
func TestReadOnlyRoot(t *testing.T) {
	_, uid := user(t, "700000-765535")
	for _, as := range []string{"0", uid} {
		t.Run("uid "+as, func(t *testing.T) {
			l := sandboxLab(t)
			l.mkdir("store")
			l.wrap = append([]string{
				"unshare", "-m", "sh", "-c",
				`cd / && mount --bind "$0" "$0" && mount -o remount,ro,bind / && for d in /tmp /var/tmp /run /dev/shm; do
				case "$0" in $d/*) ;; *) mount -t tmpfs -o ro tmpfs $d;; esac; done; exec "$@"`, l.dir,
			}, l.hand(as)...)
			l.env = []string{"PATH=" + os.Getenv("PATH")}
			o := l.build("--tag", l.image("os/readonly:1"), "--push")
			o.wantSuccess(t)
			if want := l.registry.Digest(t, "os/readonly", "1"); o.result.Digest != want {
				t.Errorf("digest %s, want %s", o.result.Digest, want)
			}
		})
	}
}
