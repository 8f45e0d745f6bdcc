// Package controller turns a MachineOSConfig and the rendered MachineConfig of
// its pool into an image: it makes a MachineOSBuild, runs the agent in a Job, reads
// the agent's result back into conditions, and builds anew when it is asked to.
//
// One reconciler works on one MachineOSConfig at a time, in three parts: observe
// reads everything that is there into a snapshot (snapshot.go), decide makes a plan
// of it (decide.go, a pure function, with judge in verdict.go for the state of a
// Job), and apply carries the plan out (apply.go). A plan never depends on what
// happened before: the program may stop between any two calls, and the next one
// decides from what is there then.
//
// What must survive such a stop is written down before it is acted on: a build's
// name follows from its inputs, every object of a build has the build's UID, and a
// request to rebuild is recorded on the MachineOSConfig until it is served
// (request.go).
package controller
