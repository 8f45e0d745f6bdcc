package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/strata-build/strata/images"
)

// describePod says, at the head of a build in a pod, what is used of all that a pod
// may give it: in at most 15 lines, and no secret.
func (b *build) describePod() {
	pod := b.settings.Pod
	if !pod.Context {
		return
	}
	var bases []string
	containerfile := b.settings.Containerfile
	if text, err := os.ReadFile(containerfile); err == nil {
		containerfile = fmt.Sprintf("%s (%d lines)", containerfile, strings.Count(string(text), "\n"))
	}
	if file, err := b.engine.Parse(b.settings.BuildSpec); err == nil {
		for _, base := range file.Bases {
			bases = append(bases, base.Name)
		}
	}
	say := func(format string, args ...any) { b.console.log.Info(fmt.Sprintf(format, args...)) }
	say("Containerfile: %s; MachineConfig: %s", containerfile, orNone(pod.MachineConfig))
	say("Image: %s", b.settings.imageName())
	if len(bases) > 0 {
		say("Base images: %s, with %s", strings.Join(bases, ", "), b.engine.Credentials(b.settings.PullAuthFile, bases[0]))
	}
	if d := b.settings.destination; d != nil && !d.Local() {
		say("Push: with %s", b.engine.Credentials(b.settings.PushAuthFile, d.Name))
	}
	say("Signature policy: %s", b.engine.Policy())
	say("Registries: %s", b.engine.Registries(bases))
	say("Authorities: %s", strings.Join(append(b.engine.AuthorityPlaces(), "those of the system"), ", "))
	var mounts []string
	for _, m := range pod.Mounts {
		mounts = append(mounts, fmt.Sprintf("%s at %s", m.What, m.Target))
	}
	say("Mounts for steps: %s", orNone(mounts))
	var proxies []string
	for _, name := range images.ProxyVariables() {
		if value := os.Getenv(name); value != "" {
			proxies = append(proxies, name+"="+value)
		}
	}
	say("Proxies: %s", orNone(proxies))
	say("Store: %s, %s; isolation: %s; user namespace: %s; temporary files: %s", b.engine.StorageRoot(), b.engine.Storage(),
		b.engine.Isolation(), b.result.Sandbox.UserNS, b.engine.TempDir())
	for _, remark := range slices.Concat(pod.Remarks, checkMounts(pod.Mounts)) {
		b.console.log.Warn(remark)
	}
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
