// Package registry runs a real container registry inside a test and lets the
// test break it on purpose.
//
// The registry is the distribution project's own request handler over a store
// in memory. In front of it stand, from the outside in, a record of every
// request, the faults that the test asked for, and the authentication that the
// test chose:
//
//	client -> record -> faults -> authentication -> distribution
//
// A fault therefore also meets requests that would have been answered with 401,
// and the record shows what happened on the wire, not what distribution wanted.
//
// The promises a test can rely on:
//
//   - The address is reserved from New on and kept until the test ends. While
//     the registry does not listen, connecting to it is refused.
//   - What was pushed survives Stop and Listen.
//   - A connection that a fault cuts is reset for real; nothing that comes after
//     the cut reaches the client.
//   - A record shows a reply no later than the client can see it.
//   - Stop returns once no request is being handled any more; no fault, however
//     long it lasts, holds it up.
//   - Inside, and the methods that look at the content, go past record, faults
//     and authentication, and work while the registry is stopped.
//   - Nothing is written to the standard logger of logrus, which the code under
//     test may share.
//
// Everything is closed when the test that made the registry ends. Only HTTP/1.1
// is spoken, and Linux is required.
package registry
