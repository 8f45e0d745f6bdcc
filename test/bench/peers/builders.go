package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// builder is a row of the tables.
type builder struct {
	name string
	// peer tells that it is one of those with which an agent is compared.
	peer bool
	// only lists the cases in which it runs, as letters; "" stands for all.
	only string
	// script returns what to do for a job.
	script func(job) (script, error)
}

// job is what is to be built and pushed.
type job struct {
	// store is the builder's directory: empty, or as an earlier run left it.
	store string
	// builds are to be made at the same time; mostly it is one.
	builds []build
	// resume tells that the store is one of an earlier build, or will be: steps have
	// to be kept.
	resume bool
	// hosts are the registries, which speak HTTP.
	hosts []string
}

// build is a Containerfile with its context and the image that it becomes.
type build struct {
	context, containerfile, secret, tag string
}

// programs are where the builders are.
type programs struct {
	// agents are paths by the names of their rows, in the order of the rows.
	agents []named
	// peers is the directory with buildah, buildkitd, buildctl and kaniko.
	peers string
	runc  string
}

type named struct{ name, path string }

// builders returns the rows.
func (p programs) builders() []builder {
	var rows []builder
	for _, a := range p.agents {
		rows = append(rows, builder{name: a.name, script: agent(a.path)})
	}
	return append(
		rows,
		builder{name: "agent in a user namespace", only: "a", script: mapped(agent(p.agents[0].path))},
		builder{name: "BuildKit", peer: true, script: p.buildkit},
		builder{name: "kaniko", peer: true, script: p.kaniko},
		builder{name: "buildah", peer: true, script: p.buildah("overlay")},
		// What a shell script around buildah does on nodes: vfs, and no steps are kept.
		builder{name: "buildah vfs", only: "a", script: p.buildah("vfs", "--log-level=debug")},
		builder{name: limitRow, only: "a", script: limitScript},
	)
}

func agent(path string) func(job) (script, error) {
	return func(j job) (script, error) {
		s := script{Store: j.store}
		for _, b := range j.builds {
			s.Builds = append(s.Builds, [][]string{{
				path, "build", "--storage-root", filepath.Join(j.store, "root"), "--tls-verify=false",
				"--secret", "id=marker,src=" + b.secret, "--containerfile", b.containerfile, "--tag", b.tag, "--push",
				"--result", filepath.Join(j.store, "result.json"), b.context,
			}})
		}
		return s, nil
	}
}

// mapped runs the builds of a script in a user namespace.
func mapped(of func(job) (script, error)) func(job) (script, error) {
	return func(j job) (script, error) {
		s, err := of(j)
		if err != nil {
			return s, err
		}
		s.Mapped, s.Env = true, append(s.Env, "HOME="+j.store) // root's own is closed to it
		own := []string{j.store}
		for _, b := range j.builds {
			own = append(own, b.secret, b.context)
		}
		for _, path := range own {
			if err := os.Chown(path, mappedRoot, mappedRoot); err != nil {
				return s, err
			}
		}
		return s, nil
	}
}

func (p programs) buildah(driver string, flags ...string) func(job) (script, error) {
	return func(j job) (script, error) {
		policy := filepath.Join(j.store, "policy.json")
		if err := os.WriteFile(policy, []byte(`{"default":[{"type":"insecureAcceptAnything"}]}`), 0o600); err != nil {
			return script{}, err
		}
		line := append([]string{
			filepath.Join(p.peers, "buildah"), "--root", filepath.Join(j.store, "root"), "--runroot", filepath.Join(j.store, "run"), "--storage-driver", driver,
		}, flags...)
		with := func(args ...string) []string { return append(line[:len(line):len(line)], args...) }
		s := script{Store: j.store, Env: []string{"CONTAINERS_POLICY_JSON=" + policy}}
		for _, b := range j.builds {
			s.Builds = append(s.Builds, [][]string{
				with("build", "--isolation", "chroot", fmt.Sprintf("--layers=%v", j.resume), "--tls-verify=false", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
					"--secret", "id=marker,src="+b.secret, "--file", b.containerfile, "--tag", b.tag, b.context),
				with("push", "--tls-verify=false", b.tag),
			})
		}
		return s, nil
	}
}

// buildkit has its daemon started for the run and ended after it.
func (p programs) buildkit(j job) (script, error) {
	config := filepath.Join(j.store, "buildkitd.toml")
	var text strings.Builder
	for _, host := range j.hosts {
		fmt.Fprintf(&text, "[registry.%q]\n  http = true\n  insecure = true\n", host)
	}
	if err := os.WriteFile(config, []byte(text.String()), 0o600); err != nil {
		return script{}, err
	}
	address := "unix://" + filepath.Join(j.store, "buildkitd.sock")
	control := func(args ...string) []string {
		return append([]string{filepath.Join(p.peers, "buildctl"), "--addr", address}, args...)
	}
	s := script{
		Store: j.store,
		// It builds only where a runc is found in PATH, whatever binary it is told to use.
		Env: []string{"PATH=" + filepath.Dir(p.runc) + string(filepath.ListSeparator) + os.Getenv("PATH")},
		Daemon: []string{
			filepath.Join(p.peers, "buildkitd"), "--config", config, "--root", filepath.Join(j.store, "root"), "--addr", address,
			"--containerd-worker=false", "--oci-worker-snapshotter=overlayfs", "--oci-worker-net=host", "--oci-worker-binary=" + p.runc,
		},
		Ready: control("debug", "workers"),
	}
	for _, b := range j.builds {
		s.Builds = append(s.Builds, [][]string{control(
			"build", "--frontend", "dockerfile.v0", "--local", "context="+b.context, "--local", "dockerfile="+filepath.Dir(b.containerfile),
			"--opt", "filename="+filepath.Base(b.containerfile), "--secret", "id=marker,src="+b.secret, "--progress", "plain",
			"--output", "type=image,name="+b.tag+",push=true,registry.insecure=true,oci-mediatypes=true",
		)})
	}
	return s, nil
}

// jail makes the directory $1 the root of the commands that follow: kaniko unpacks the
// image over its root. $1 has a /proc and a /dev of its own, which kaniko leaves alone
// since they are mounts.
const jail = `set -e
mount -t proc proc "$1/proc"
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
cp -a /dev/null /dev/zero /dev/random /dev/urandom /dev/tty "$1/dev/"
ln -s /proc/self/fd "$1/dev/fd"
exec chroot "$@"`

func (p programs) kaniko(j job) (script, error) {
	s := script{Store: j.store, Env: []string{"HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/kaniko", "DOCKER_CONFIG=/kaniko/.docker"}}
	for i, b := range j.builds {
		root := filepath.Join(j.store, fmt.Sprint("root", i))
		if err := p.kanikoRoot(root, b); err != nil {
			return script{}, err
		}
		line := []string{
			"/usr/bin/unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-c", jail, "sh", root,
			"/kaniko/executor", "--force", "--context", "dir:///workspace", "--dockerfile", "/kaniko/Containerfile", "--destination", b.tag, "--insecure", "--insecure-pull",
		}
		if j.resume {
			// It keeps steps in a registry.
			line = append(line, "--cache", "--cache-copy-layers", "--cache-repo", b.tag[:strings.LastIndex(b.tag, ":")]+"/cache")
		}
		s.Builds = append(s.Builds, [][]string{line})
	}
	return s, nil
}

// kanikoRoot makes the root for one build. It is that of a new pod each time.
func (p programs) kanikoRoot(root string, b build) error {
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	for _, dir := range []string{"kaniko/.docker", "etc", "root", "tmp", "proc", "dev", "run"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.CopyFS(filepath.Join(root, "workspace"), os.DirFS(b.context)); err != nil {
		return err
	}
	executor, err := os.ReadFile(filepath.Join(p.peers, "kaniko"))
	if err != nil {
		return err
	}
	containerfile, err := os.ReadFile(b.containerfile)
	if err != nil {
		return err
	}
	secret, err := os.ReadFile(b.secret)
	if err != nil {
		return err
	}
	// It has no secrets of RUN: the step looks in a directory that becomes no part of
	// the image.
	text := strings.NewReplacer(secretMount, "", "/run/secrets/marker", "/kaniko/marker").Replace(string(containerfile))
	for name, file := range map[string]struct {
		data []byte
		mode os.FileMode
	}{
		"kaniko/executor":            {executor, 0o755},
		"kaniko/Containerfile":       {[]byte(text), 0o644},
		"kaniko/marker":              {secret, 0o600},
		"kaniko/.docker/config.json": {[]byte("{}"), 0o644},
		"etc/hosts":                  {[]byte("127.0.0.1 localhost\n"), 0o644},
		"etc/passwd":                 {[]byte("root:x:0:0:root:/root:/bin/sh\n"), 0o644},
		"etc/group":                  {[]byte("root:x:0:\n"), 0o644},
	} {
		if err := os.WriteFile(filepath.Join(root, name), file.data, file.mode); err != nil {
			return err
		}
	}
	return nil
}
