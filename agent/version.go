package agent

import "runtime/debug"

// version is set by the linker (-X) to the name of the release.
var version = ""

// Version is the version of the agent: that of the release, or the revision that
// it was built from.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return "devel-" + s.Value[:12]
			}
		}
	}
	return "devel"
}
