package images

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/storage/pkg/configfile"
)

// Policy says which signature policy is in force.
func (e *Engine) Policy() string {
	if e.policy == "" {
		return "the built-in one, which accepts any image"
	}
	return e.policy
}

// Registries says which registries configuration is in force, and what becomes of the
// images with these names: from where they are pulled, when not from their registry.
func (e *Engine) Registries(names []string) string {
	files := []string{e.sys.SystemRegistriesConfPath}
	switch files[0] {
	case "":
		files = foundFiles(&configfile.File{Name: "registries", Extension: "conf", EnvironmentName: "CONTAINERS_REGISTRIES_CONF"})
	case os.DevNull:
		files = foundFiles(&configfile.File{Name: "registries", Extension: "conf", DoNotLoadMainFiles: true})
	}
	for i, file := range files {
		if info, err := os.Stat(file); err == nil {
			files[i] = fmt.Sprintf("%s (%d bytes)", file, info.Size())
		}
	}
	text := "no configuration"
	if len(files) > 0 {
		text = strings.Join(files, ", ")
	}
	for _, name := range names {
		ref, err := reference.ParseNormalizedNamed(trimDocker(name))
		if err != nil {
			continue
		}
		registry, err := sysregistriesv2.FindRegistry(&e.sys, ref.Name())
		if err != nil || registry == nil {
			continue
		}
		sources, err := registry.PullSourcesFromReference(reference.TagNameOnly(ref))
		if err != nil || len(sources) == 1 && sources[0].Reference.Name() == ref.Name() {
			continue
		}
		var places []string
		for _, source := range sources {
			places = append(places, source.Reference.Name())
		}
		text += fmt.Sprintf("; %s from %s", ref.Name(), strings.Join(places, ", then "))
	}
	return text
}

// AuthorityPlaces lists the directories and files with certificates of authorities
// that were found, beside those of the system.
func (e *Engine) AuthorityPlaces() []string {
	seen := map[string]bool{}
	var places []string
	for _, file := range e.authorityFiles() {
		if dir := filepath.Dir(file); !slices.Contains(e.config.Authorities, file) {
			file = dir
		}
		if !seen[file] {
			seen[file] = true
			places = append(places, file)
		}
	}
	return places
}

// Credentials says whose credentials an auth file, or where path is empty those of
// this user, has for the image with this name; never the secret.
func (e *Engine) Credentials(path, name string) string {
	ref, err := reference.ParseNormalizedNamed(trimDocker(name))
	if err != nil {
		return "none"
	}
	return e.describeCredentials(path, ref)
}
