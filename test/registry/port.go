package registry

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
)

// port is a TCP port of this machine that stays reserved whether or not somebody
// listens on it. It is reserved by a socket that is bound but not listening:
// connecting to such a port is refused, and nobody else can come by it.
type port struct {
	addr netip.AddrPort
	fd   int // the bound socket, -1 while a listener has it
}

// reserve binds addr; port 0 stands for a free one.
func reserve(addr string) (*port, error) {
	parsed, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	p := &port{addr: parsed, fd: -1}
	return p, p.bind()
}

func (p *port) bind() error {
	family := syscall.AF_INET
	if p.addr.Addr().Is6() {
		family = syscall.AF_INET6
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("socket for %s: %w", p.addr, err)
	}
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil {
		err = syscall.Bind(fd, sockaddr(p.addr))
	}
	var bound syscall.Sockaddr
	if err == nil {
		bound, err = syscall.Getsockname(fd)
	}
	if err != nil {
		syscall.Close(fd)
		return fmt.Errorf("binding %s: %w", p.addr, err)
	}
	p.fd = fd
	switch bound := bound.(type) {
	case *syscall.SockaddrInet4:
		p.addr = netip.AddrPortFrom(p.addr.Addr(), uint16(bound.Port))
	case *syscall.SockaddrInet6:
		p.addr = netip.AddrPortFrom(p.addr.Addr(), uint16(bound.Port))
	}
	return nil
}

// listen turns the reserving socket into a listener. Once that is closed, bind
// reserves the port again.
func (p *port) listen() (net.Listener, error) {
	if err := syscall.Listen(p.fd, syscall.SOMAXCONN); err != nil {
		return nil, fmt.Errorf("listening on %s: %w", p.addr, err)
	}
	file := os.NewFile(uintptr(p.fd), p.addr.String())
	p.fd = -1
	defer file.Close() // the listener has a descriptor of its own
	return net.FileListener(file)
}

// release gives the port up.
func (p *port) release() {
	if p.fd >= 0 {
		syscall.Close(p.fd)
		p.fd = -1
	}
}

func sockaddr(addr netip.AddrPort) syscall.Sockaddr {
	if addr.Addr().Is4() {
		return &syscall.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}
	}
	return &syscall.SockaddrInet6{Addr: addr.Addr().As16(), Port: int(addr.Port())}
}
