// Package controller holds the tests of the controller against a real API server,
// with the Job controller and the garbage collector of Kubernetes. There is no
// node: the tests say what becomes of pods.
package controller
