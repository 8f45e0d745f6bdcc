package render

import (
	"fmt"
	"slices"
	"strings"
	"text/template"
)

// Containerfile is what goes into the Containerfile of a build.
type Containerfile struct {
	// BaseImage is the operating system that is extended (osImageURL of the
	// rendered MachineConfig).
	BaseImage string
	// ExtensionsImage holds the packages of extensions and kernels that the base
	// image does not have; needed only when one of these is asked for.
	ExtensionsImage string
	// Extensions and KernelType are those of the rendered MachineConfig.
	Extensions []string
	KernelType string
	// Architecture is that of the nodes, in Go's spelling.
	Architecture string
	// MachineConfig, Pool and ReleaseVersion become labels of the image; an empty
	// ReleaseVersion becomes none.
	MachineConfig, Pool, ReleaseVersion string
	// TrustBundle tells whether the context has the user's certificate authorities.
	TrustBundle bool
	// User is the user's part, which is not looked into.
	User string
}

// Names of files in the build context and the image.
const (
	// MachineConfigFile is the rendered MachineConfig as JSON, compressed with
	// gzip, as the pod mounts it. One that is in several parts has a number appended
	// to the name of each: .0, .1, and so on. In the build context, where the agent
	// puts it, it is one file of this name in the folder machineconfig/, in base64.
	MachineConfigFile = "machineconfig.json.gz"
	// TrustBundleFile has the user's certificate authorities.
	TrustBundleFile = "openshift-config-user-ca-bundle.crt"
)

// extensions maps an extension to its packages. It is the list of the Machine
// Config Operator for RHEL CoreOS.
var extensions = map[string][]string{
	"ipsec":                {"NetworkManager-libreswan", "libreswan"},
	"kerberos":             {"krb5-workstation", "libkadm5"},
	"kernel-devel":         {"kernel-devel", "kernel-headers"},
	"sandboxed-containers": {"kata-containers"},
	"sysstat":              {"sysstat"},
	"two-node-ha":          {"pacemaker", "pcs", "fence-agents-all"},
	"usbguard":             {"usbguard"},
	"wasm":                 {"crun-wasm"},
}

// Kernels by the names that a MachineConfig knows them by.
const (
	kernelDefault  = "default"
	kernelRealtime = "realtime"
	kernel64k      = "64k-pages"
)

// replaced are the packages of the default kernel, which another one replaces.
var replaced = []string{"kernel", "kernel-core", "kernel-modules", "kernel-modules-core", "kernel-modules-extra"}

var kernels = map[string][]string{
	kernelRealtime: {"kernel-rt-core", "kernel-rt-modules", "kernel-rt-modules-core", "kernel-rt-modules-extra", "kernel-rt-kvm"},
	kernel64k:      {"kernel-64k-core", "kernel-64k-modules", "kernel-64k-modules-core", "kernel-64k-modules-extra"},
}

var text = template.Must(template.New("Containerfile").Parse(`# Written by the controller; what the MachineOSConfig says follows at the end.
FROM {{.BaseImage}} AS extract
COPY machineconfig/{{.File}} /tmp/{{.File}}
RUN mkdir -p /etc/machine-config-daemon && \
    base64 -d /tmp/{{.File}} > /tmp/currentconfig.gz && \
    gunzip -c /tmp/currentconfig.gz > /etc/machine-config-daemon/currentconfig

FROM {{.BaseImage}} AS configs
COPY --from=extract /etc/machine-config-daemon/currentconfig /etc/machine-config-daemon/currentconfig
# Ignition looks at its own name and at this variable to know what it is asked for.
RUN jq '.spec.config' /etc/machine-config-daemon/currentconfig > /tmp/ignition.json && \
    (container=oci exec -a ignition-apply /usr/lib/dracut/modules.d/30ignition/ignition --ignore-unsupported /tmp/ignition.json) && \
    rm /tmp/ignition.json && \
    ostree container commit
{{- if .Packages}}
RUN --mount=type=bind,from={{.ExtensionsImage}},source=/,target=/tmp/extensions,z \
    printf '[coreos-extensions]\nenabled=1\nmetadata_expire=1m\nbaseurl=file:///tmp/extensions/usr/share/rpm-ostree/extensions/\ngpgcheck=0\nskip_if_unavailable=False\n' \
      > /etc/yum.repos.d/coreos-extensions.repo && \
    {{.Install}} && \
    rm /etc/yum.repos.d/coreos-extensions.repo && \
    ostree container commit
{{- end}}
{{- if .TrustBundle}}
COPY {{.Bundle}} /etc/pki/ca-trust/source/anchors/{{.Bundle}}
RUN update-ca-trust
{{- end}}
LABEL machineconfig="{{.MachineConfig}}"
LABEL machineconfigpool="{{.Pool}}"
{{- if .ReleaseVersion}}
LABEL releaseversion="{{.ReleaseVersion}}"
{{- end}}
LABEL baseOSContainerImage="{{.BaseImage}}"
`))

// Render returns the Containerfile and the line on which the user's part begins
// (0 when there is none). It fails, with a sentence for a person, when the
// MachineConfig asks for what no Containerfile can give it.
func (c Containerfile) Render() (content string, userLine int, err error) {
	if c.BaseImage == "" {
		return "", 0, fmt.Errorf("MachineConfig %s has no osImageURL, so there is no image to extend", c.MachineConfig)
	}
	for _, name := range []string{c.BaseImage, c.ExtensionsImage} {
		if strings.ContainsAny(name, " \t\r\n\"'\\$`") {
			return "", 0, fmt.Errorf("MachineConfig %s names the image %q, which is no name of an image", c.MachineConfig, name)
		}
	}
	if strings.ContainsAny(c.ReleaseVersion, "\r\n\"\\$`") {
		return "", 0, fmt.Errorf("MachineConfig %s has the release version %q, which is none", c.MachineConfig, c.ReleaseVersion)
	}
	install, err := c.install()
	if err != nil {
		return "", 0, err
	}
	if install != "" && c.ExtensionsImage == "" {
		return "", 0, fmt.Errorf("MachineConfig %s asks for extensions or another kernel, but neither it nor the ControllerConfig has a baseOSExtensionsContainerImage", c.MachineConfig)
	}
	var b strings.Builder
	err = text.Execute(&b, struct {
		Containerfile
		Packages              bool
		Install, File, Bundle string
	}{c, install != "", install, MachineConfigFile, TrustBundleFile})
	if err != nil {
		return "", 0, err
	}
	if c.User != "" {
		b.WriteString("\n")
		userLine = strings.Count(b.String(), "\n") + 1
		b.WriteString(c.User)
		if !strings.HasSuffix(c.User, "\n") {
			b.WriteString("\n")
		}
	}
	return b.String(), userLine, nil
}

// install is the command that installs extensions and changes the kernel, or nothing.
func (c Containerfile) install() (string, error) {
	var packages []string
	for _, name := range c.Extensions {
		of, ok := extensions[name]
		if !ok {
			return "", fmt.Errorf("MachineConfig %s asks for the extension %q, which is unknown; known are %s", c.MachineConfig, name, strings.Join(known(extensions), ", "))
		}
		packages = append(packages, of...)
	}
	switch c.KernelType {
	case "", kernelDefault:
		if len(packages) == 0 {
			return "", nil
		}
		return "rpm-ostree install " + strings.Join(packages, " "), nil
	case kernel64k:
		if c.Architecture != "arm64" {
			return "", fmt.Errorf("MachineConfig %s asks for the kernel with 64k pages, which exists for arm64 alone; the nodes are %s", c.MachineConfig, c.Architecture)
		}
	}
	kernel, ok := kernels[c.KernelType]
	if !ok {
		return "", fmt.Errorf("MachineConfig %s asks for the kernel type %q, which is unknown; known are %s, %s", c.MachineConfig, c.KernelType, kernelDefault, strings.Join(known(kernels), ", "))
	}
	command := "rpm-ostree override remove " + strings.Join(replaced, " ")
	for _, p := range slices.Concat(kernel, packages) {
		command += " --install " + p
	}
	return command, nil
}

func known(table map[string][]string) (names []string) {
	for name := range table {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
