package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// debianGroups are the packages of the base image, a layer for each line, above one with
// Debian's essential packages. They are what a node has: a kernel, systemd, containers,
// tools; locales, manuals and a compiler stand for the rest of its size.
var debianGroups = []string{
	"linux-image-" + runtime.GOARCH,
	"systemd systemd-sysv udev dbus libpam-systemd polkitd",
	"podman crun buildah conmon skopeo",
	"python3 python3-yaml python3-requests python3-apt",
	"git perl vim",
	"openssh-server curl wget iproute2 iptables nftables iputils-ping chrony",
	"gcc g++",
	"network-manager",
	"locales-all",
	"gdb strace tcpdump",
	"kexec-tools makedumpfile kdump-tools",
	"lvm2 cryptsetup xfsprogs e2fsprogs multipath-tools open-iscsi nfs-common",
	"clang llvm",
	"man-db manpages manpages-dev bash-completion",
	"sysstat rsyslog sssd-common samba-libs",
}

// debian is the base image that is made of Debian's packages.
type debian struct {
	// root is an archive of a root filesystem with the essential packages.
	root string
	// cache is a directory for the packages.
	cache string
}

func (debian) repository() string { return "os/base" }

// layers downloads the packages and returns the layers, as archives that are made while
// they are read.
func (d debian) layers(ctx context.Context, out io.Writer) ([]io.ReadCloser, error) {
	root, err := os.Open(d.root)
	if err != nil {
		return nil, err
	}
	status, err := d.status()
	if err != nil {
		return nil, err
	}
	if err := command(ctx, out, "apt-get", "update", "-q"); err != nil {
		return nil, err
	}
	layers := []io.ReadCloser{root}
	var all, below []string // packages, as files
	for _, group := range debianGroups {
		fmt.Fprintln(out, "Debian packages:", group)
		packages, err := d.download(ctx, status, group)
		if err != nil {
			return nil, err
		}
		added := slices.DeleteFunc(packages, func(file string) bool { return slices.Contains(all, file) })
		all = append(all, added...)
		layers = append(layers, packageLayer(ctx, added, slices.Clone(all), below))
		below = added
	}
	return layers, nil
}

// status writes the list of the packages in root where apt can read it.
func (d debian) status() (string, error) {
	file, err := os.Open(d.root)
	if err != nil {
		return "", err
	}
	defer file.Close()
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if err != nil {
			return "", fmt.Errorf("%s: looking for the list of packages: %w", d.root, err)
		}
		if path.Clean(header.Name) != "var/lib/dpkg/status" {
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return "", err
		}
		status := filepath.Join(d.cache, "status")
		return status, errors.Join(os.MkdirAll(filepath.Join(d.cache, "partial"), 0o755), os.WriteFile(status, data, 0o644))
	}
}

// download returns the files of the packages and of those that they need beyond the ones
// in the list.
func (d debian) download(ctx context.Context, status, group string) ([]string, error) {
	apt := func(action, cache string) (string, error) {
		line := []string{action, "-q", "-y", "--no-install-recommends", "-o", "Dir::State::status=" + status, "-o", "Dir::Cache::archives=" + cache, "install"}
		var out bytes.Buffer
		if err := command(ctx, &out, "apt-get", append(line, strings.Fields(group)...)...); err != nil {
			return "", fmt.Errorf("%w\n%s", err, &out)
		}
		return out.String(), nil
	}
	if _, err := apt("--download-only", d.cache); err != nil {
		return nil, err
	}
	// Only packages that are not in the cache are printed.
	empty := filepath.Join(d.cache, "empty")
	if err := os.MkdirAll(filepath.Join(empty, "partial"), 0o755); err != nil {
		return nil, err
	}
	uris, err := apt("--print-uris", empty)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, text := range strings.Split(uris, "\n") {
		if fields := strings.Fields(text); len(fields) >= 3 && strings.HasPrefix(text, "'") {
			files = append(files, filepath.Join(d.cache, fields[1]))
		}
	}
	slices.Sort(files)
	return files, nil
}

// packageLayer returns the archive of a layer with the files of packages. As in real
// layers, the list of all packages so far changes with it, and something of the layer
// below goes: the documentation of its first package.
func packageLayer(ctx context.Context, packages, all, below []string) io.ReadCloser {
	read, write := io.Pipe()
	go func() {
		out := tar.NewWriter(write)
		err := copyPackages(ctx, out, packages)
		if err == nil && len(below) > 0 {
			name, _, _ := strings.Cut(filepath.Base(below[0]), "_")
			err = out.WriteHeader(&tar.Header{Name: "usr/share/doc/.wh." + name, Typeflag: tar.TypeReg, Mode: 0o644})
		}
		if err == nil {
			err = writeStatus(ctx, out, all)
		}
		write.CloseWithError(errors.Join(err, out.Close()))
	}()
	return read
}

// copyPackages writes the files of packages, each directory once.
func copyPackages(ctx context.Context, out *tar.Writer, packages []string) error {
	seen := map[string]bool{".": true}
	for _, file := range packages {
		cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		err = mergeTar(out, stdout, seen)
		_, _ = io.Copy(io.Discard, stdout) // lets the program end
		if err := errors.Join(err, cmd.Wait()); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// mergeTar copies the entries that were not seen yet. Those in /bin, /lib and so on go
// to where these links point.
func mergeTar(out *tar.Writer, in io.Reader, seen map[string]bool) error {
	for r := tar.NewReader(in); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		header.Name = merged(header.Name)
		if header.Typeflag == tar.TypeLink {
			header.Linkname = merged(header.Linkname)
		}
		if seen[header.Name] {
			continue
		}
		seen[header.Name] = true
		if header.Typeflag == tar.TypeDir {
			header.Name += "/"
		}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(out, r); err != nil {
			return err
		}
	}
}

// merged is the path in a root whose /bin, /sbin and /lib are links into /usr.
func merged(name string) string {
	name = path.Clean(strings.TrimPrefix(name, "/"))
	switch top, _, _ := strings.Cut(name, "/"); top {
	case "bin", "sbin", "lib", "lib32", "lib64", "libx32":
		return "usr/" + name
	}
	return name
}

// writeStatus writes a list of packages, as dpkg keeps it.
func writeStatus(ctx context.Context, out *tar.Writer, packages []string) error {
	var list bytes.Buffer
	for _, file := range packages {
		fields, err := exec.CommandContext(ctx, "dpkg-deb", "--field", file).Output()
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		list.Write(fields)
		list.WriteString("Status: install ok unpacked\n\n")
	}
	if err := out.WriteHeader(&tar.Header{Name: "var/lib/dpkg/status", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(list.Len())}); err != nil {
		return err
	}
	_, err := out.Write(list.Bytes())
	return err
}

// command runs a program.
func command(ctx context.Context, out io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}
