// Package podman runs the image of the product, which the product has built, in
// rootless podman: with and without further capabilities, with a volume as the store.
// It builds a Containerfile with files of several users there, and pushes to a registry.
//
// The tests make a user of the machine, install podman, crun and uidmap where they are
// missing, and take away everything that they made. They need root to do so; podman and
// what runs in it has none.
package podman
