// Package bases makes the images that tests build on, pushes them, and reads
// back what came out. It uses another implementation of images than the code
// under test, so that one can vouch for the other.
//
// The images depend on nothing but the busybox of the machine: an image made
// twice has the same digest. They have the media types of docker's schema 2, or
// with OCI those of OCI, and layers compressed with gzip.
//
// Busybox is taken from /bin or /usr/bin and has to be a static program; where
// there is none, the package busybox-static is installed once. If that fails,
// the test fails; it is never skipped.
//
// Push, Pull and PullIndex speak HTTP or HTTPS to a registry on a loopback
// address, whichever it serves, and take the options of
// go-containerregistry's package remote:
//
//	bases.Push(t, reg.Host(), "base/busy:1", bases.Busy(t),
//		remote.WithTransport(reg.Transport()), // trusts the registry's CA
//		remote.WithAuth(&authn.Basic{Username: "user", Password: "secret"}))
package bases
