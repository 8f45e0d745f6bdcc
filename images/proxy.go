package images

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/strata-build/strata/images/distribution"
)

// proxyVariables are the variables that name proxies, in one spelling.
var proxyVariables = []string{"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"}

// ProxyVariables are the variables that name proxies, in capital letters.
func ProxyVariables() []string { return slices.Clone(proxyVariables) }

// IsProxyVariable tells whether a variable names a proxy, in either spelling.
func IsProxyVariable(name string) bool { return slices.Contains(proxyVariables, strings.ToUpper(name)) }

// keepOwnProxies fixes the proxies that this process uses itself, which the library
// reads once, at its first request: what is set later is for steps. It warns of one
// that the library leaves out without a word, and does not quote it.
func keepOwnProxies(log *slog.Logger) {
	for _, scheme := range []string{"http", "https"} {
		_, _ = proxyFor(scheme, "registry.invalid")
		variable := proxyVariable(scheme)
		value := cmp.Or(os.Getenv(variable), os.Getenv(strings.ToLower(variable)))
		_, err := url.Parse(value)
		if _, bare := url.Parse("http://" + value); err != nil && bare != nil { // HOST:PORT will do
			log.Warn("The value of " + variable + " is not the URL of a proxy, http://USER:PASSWORD@HOST:PORT with special characters as %XX: no proxy is used for " + scheme)
		}
	}
}

// proxyFor is the proxy to a host, nil for none.
func proxyFor(scheme, host string) (*url.URL, error) {
	return http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: scheme, Host: host}})
}

// proxyVariable is the variable that names the proxy to servers of a scheme.
func proxyVariable(scheme string) string { return strings.ToUpper(scheme) + "_PROXY" }

// proxyFault is a failure of the proxy on the way to a server, not of the server.
type proxyFault struct {
	host     string // of the proxy, with its port
	variable string // that names it
	// credentials tells that the variable has some.
	credentials bool
	status      int   // what it answered, 0 when it was not reached
	err         error // why not
}

// proxyFaultOf finds out whether an error is that of a proxy; nil says that it is not.
func proxyFaultOf(err error) *proxyFault {
	scheme, host := requestTarget(err)
	p := &proxyFault{status: httpStatus(err)}
	var answer *distribution.Error
	var op *net.OpError
	switch {
	case errors.As(err, &answer) && answer.Method == http.MethodConnect:
		scheme, p.status = "https", answer.Status
	case errors.As(err, &op) && op.Op == "proxyconnect":
		p.status, p.err = 0, op.Err
	case answer != nil && answer.Status == http.StatusProxyAuthRequired:
		scheme, host, p.status = "http", answer.Host, answer.Status
	case p.status == http.StatusProxyAuthRequired:
	default:
		if p.status = connectStatus(err); p.status == 0 {
			return nil
		}
	}
	if proxy, err := proxyFor(scheme, host); err == nil && proxy != nil {
		p.host, p.credentials = proxy.Host, proxy.User != nil
	}
	if p.host == "" && answer != nil && answer.Method == http.MethodConnect {
		p.host = answer.Host
	}
	if p.host == "" {
		return nil // it is not known that there is one
	}
	p.variable = proxyVariable(scheme)
	return p
}

// requestTarget is the scheme and the host of the request that err is about.
func requestTarget(err error) (scheme, host string) {
	var request *url.Error
	target := ""
	if errors.As(err, &request) {
		target = request.URL
	} else if m := quotedURL.FindStringSubmatch(err.Error()); m != nil {
		target = m[1]
	}
	if u, err := url.Parse(target); err == nil {
		return u.Scheme, u.Host
	}
	return "", ""
}

// connectStatus is the status with which a proxy opened no connection, of which an
// http.Client tells the text alone; 0 for none.
func connectStatus(err error) int {
	var request *url.Error
	if !errors.As(err, &request) || request.Err == nil {
		return 0
	}
	for status := http.StatusBadRequest; status < 600; status++ {
		if text := http.StatusText(status); text != "" && request.Err.Error() == text {
			return status
		}
	}
	return 0
}

// describe says what the proxy did.
func (p *proxyFault) describe() string {
	who := fmt.Sprintf("the proxy %s, which %s names,", p.host, p.variable)
	switch {
	case p.status == http.StatusProxyAuthRequired && p.credentials:
		return fmt.Sprintf("%s refused the credentials that %s has (%s)", who, p.variable, statusName(p.status))
	case p.status == http.StatusProxyAuthRequired:
		return fmt.Sprintf("%s wants credentials, and %s has none (%s)", who, p.variable, statusName(p.status))
	case p.status != 0:
		return fmt.Sprintf("%s answered %s to a CONNECT", who, statusName(p.status))
	}
	return fmt.Sprintf("%s cannot be reached: %s", who, oneLine(p.err.Error()))
}

// spellProxies sets each proxy variable that is set in one spelling in the other
// too: programs in RUN steps disagree about which one they read.
func spellProxies() {
	for _, upper := range proxyVariables {
		lower := strings.ToLower(upper)
		for _, pair := range [][2]string{{upper, lower}, {lower, upper}} {
			if value, ok := os.LookupEnv(pair[0]); ok && os.Getenv(pair[1]) == "" {
				_ = os.Setenv(pair[1], value)
			}
		}
	}
}

// withholdProxies takes proxies with a password out of build arguments and gives
// them to steps as their environment instead: an argument that the Containerfile
// declares would put the password into the history of the image.
func (e *Engine) withholdProxies(args map[string]string) {
	for name, value := range args {
		if !IsProxyVariable(name) || !strings.Contains(value, "@") {
			continue
		}
		delete(args, name)
		_ = os.Setenv(name, value)
		if !e.withheld {
			e.withheld = true
			e.log.Warn("The build argument " + name + " holds a password: RUN steps get it as a variable of their environment, so that it is not in the image's history")
		}
	}
	spellProxies()
}
