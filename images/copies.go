package images

import (
	"github.com/openshift/imagebuilder/dockerfile/command"

	"github.com/strata-build/strata/images/standby"
)

// StandBy has a process ready that does the work of those that buildah starts for the
// copies of a Containerfile, until it has been built. It may be called twice.
func (e *Engine) StandBy(file *Containerfile) {
	if e.standby != nil || !file.copies() {
		return
	}
	var err error
	e.standby, err = standby.Start(e.tmp)
	e.sayStandby(err)
}

// standByBoth has a second one ready: one reads what the other one writes. It is started
// when the first one has been, most often, since two take each other's time.
func (e *Engine) standByBoth(file *Containerfile) {
	e.StandBy(file)
	if e.standby != nil && !e.both {
		e.both = true
		e.sayStandby(e.standby.Add())
	}
}

func (e *Engine) sayStandby(err error) {
	if err != nil {
		e.log.Debug("Copies start processes of their own", "reason", err)
	}
}

// copies tells whether the Containerfile has a step that copies something.
func (c *Containerfile) copies() bool {
	all := func(string) bool { return true }
	return c.has(command.Copy, all) || c.has(command.Add, all)
}
