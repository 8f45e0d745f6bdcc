package cluster

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// gatekeeper answers a RUN step that asks to go on when the test lets it.
type gatekeeper struct {
	address string // as pods see it

	mu    sync.Mutex
	gates map[string]*gate
}

type gate struct {
	arrivals int
	open     chan struct{}
}

// gates is started by the first who needs it, on the address of this machine that
// nobody but the node sees.
var gates = sync.OnceValues(func() (*gatekeeper, error) {
	node, _, err := net.SplitHostPort(host)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", node[:strings.LastIndex(node, ".")]+".1:0")
	if err != nil {
		return nil, err
	}
	k := &gatekeeper{address: listener.Addr().String(), gates: map[string]*gate{}}
	go func() { _ = http.Serve(listener, k) }()
	return k, nil
})

func (k *gatekeeper) gate(name string) *gate {
	g := k.gates[name]
	if g == nil {
		g = &gate{open: make(chan struct{})}
		k.gates[name] = g
	}
	return g
}

// ServeHTTP holds a step until its gate is open.
func (k *gatekeeper) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	g := k.gate(r.URL.Path)
	g.arrivals++
	k.mu.Unlock()
	select {
	case <-g.open:
	case <-r.Context().Done():
	}
}

// waitAt is the command with which a step waits at the gate of a pool.
func waitAt(t *testing.T, pool string) string {
	t.Helper()
	k, err := gates()
	if err != nil {
		t.Fatal(err)
	}
	return "echo at the gate && wget -q -O /dev/null http://" + k.address + "/" + pool
}

// arrivals counts the steps that have come to a gate since the test began.
func arrivals(t *testing.T, pool string) int {
	t.Helper()
	k, err := gates()
	if err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.gate("/" + pool).arrivals
}

// arrived waits until n steps have come to a gate.
func arrived(t *testing.T, pool string, n int) {
	t.Helper()
	await(t, "a step of "+pool+" is at the gate", func(context.Context) (bool, error) { return arrivals(t, pool) >= n, nil })
}

func openGate(t *testing.T, pool string) {
	t.Helper()
	k, err := gates()
	if err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.gate("/" + pool).open)
}
