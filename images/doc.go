// Package images is everything that touches buildah, containers/storage and
// containers/image: the store, the sandbox, pull, build, push, credentials,
// trust, and what their errors mean. No other package imports those modules.
//
// An Engine is opened once for a build. Its operations (Pull, Build, Push,
// Verify) make one attempt each, with the libraries' own retries switched off,
// and return an *Error that says what failed and what class of failure it is;
// how often an operation is tried is its caller's business.
package images
