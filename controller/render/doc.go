// Package render turns the inputs of a build into the files that the build pod
// mounts: the Containerfile around the user's part, the rendered MachineConfig in
// parts that fit into ConfigMaps, and the configuration of registries that the
// nodes of the pool have. It reads nothing and decides nothing about a cluster.
package render
