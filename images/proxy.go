package images

import (
	"net/http"
	"os"
	"slices"
	"strings"
)

// proxyVariables are the variables that name proxies, in one spelling.
var proxyVariables = []string{"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"}

// ProxyVariables are the variables that name proxies, in capital letters.
func ProxyVariables() []string { return slices.Clone(proxyVariables) }

// IsProxyVariable tells whether a variable names a proxy, in either spelling.
func IsProxyVariable(name string) bool { return slices.Contains(proxyVariables, strings.ToUpper(name)) }

// keepOwnProxies fixes the proxies that this process uses itself, which the library
// reads once, at its first request: what is set later is for steps.
func keepOwnProxies() {
	if req, err := http.NewRequest(http.MethodGet, "http://proxy.invalid", nil); err == nil {
		_, _ = http.ProxyFromEnvironment(req)
	}
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
