// Package prefault has the kernel map the whole program into each of its processes when
// it begins, before Go's runtime does, instead of page by page when one is used. A build
// starts several processes of this program, and each uses hundreds of pages: that many
// page faults take longer than to map all at once, the more so in a virtual machine, and
// where the program has to be read from a disk.
package prefault
