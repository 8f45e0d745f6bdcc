package images

import "slices"

// check is one thing that a build needs: it is looked at, chosen and made ready.
type check struct {
	name string
	// needs are checks without whose success this one cannot be made.
	needs []string
	look  func(*Engine) (Finding, error)
	// said is set where the choice is worth a line of the log; a warning always is.
	said bool
	// later is set where the build says itself what it comes to, when it comes to it.
	later bool
}

// The names of the checks, in their order, behind CheckUserNS.
const (
	checkRoot          = "store"
	checkTemp          = "temporary files"
	checkDriver        = "storage"
	checkMounts        = "mounts"
	checkIsolation     = "isolation"
	checkSeccomp       = "seccomp"
	checkLimits        = "limits"
	checkConfiguration = "configuration"
)

// checks are made by each build when it begins, and by `agent doctor`. None talks to
// a registry.
var checks = []check{
	{name: checkRoot, look: (*Engine).lookAtRoot},
	{name: checkTemp, needs: []string{checkRoot}, look: (*Engine).lookAtTemp},
	{name: checkDriver, needs: []string{CheckUserNS, checkRoot}, look: (*Engine).lookAtDriver, said: true},
	{name: checkMounts, needs: []string{CheckUserNS, checkTemp, checkDriver}, look: (*Engine).lookAtMounts},
	{name: checkIsolation, look: (*Engine).lookAtIsolation, said: true},
	{name: checkSeccomp, needs: []string{CheckUserNS}, look: (*Engine).lookAtSeccomp, said: true},
	{name: checkLimits, needs: []string{CheckUserNS}, look: (*Engine).lookAtLimits, later: true},
	{name: checkConfiguration, needs: []string{checkTemp}, look: (*Engine).lookAtConfiguration},
}

// look makes a check.
func (e *Engine) look(c check) (Finding, error) {
	f, err := c.look(e)
	if err != nil {
		f = asFinding(err)
	}
	if err == nil {
		err = f.Err()
	}
	f.Check = c.name
	return f, err
}

// say logs what a check found.
func (e *Engine) say(c check, f Finding) {
	switch {
	case c.later:
	case c.said || f.Severity == SeverityWarning:
		f.Log(e.log)
	default:
		e.log.Debug(f.line())
	}
}

// Examine makes the checks that Open makes, all of them: also those behind one that
// fails, unless they need it. failed names checks that failed before. The store that it
// opens is closed again.
func Examine(config Config, failed ...string) []Finding {
	e := &Engine{config: config, log: config.Output.Log}
	defer e.Close()
	e.begin()
	var findings []Finding
	for _, c := range checks {
		i := slices.IndexFunc(c.needs, func(name string) bool { return slices.Contains(failed, name) })
		if i >= 0 {
			failed = append(failed, c.name)
			findings = append(findings, Finding{Check: c.name, Severity: SeverityUnknown, Found: "not looked at, since it needs what failed: " + c.needs[i]})
			continue
		}
		f, err := e.look(c)
		if err != nil {
			failed = append(failed, c.name)
		}
		findings = append(findings, f)
	}
	return findings
}
