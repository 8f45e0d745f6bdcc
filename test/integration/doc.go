// Package integration drives the agent as a process against a real registry,
// through the cases that users of such tools ran into. Its tests run as root,
// need no other machine, and build the agent first unless AGENT_BINARY names one.
package integration
