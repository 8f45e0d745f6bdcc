package images

import (
	"github.com/openshift/imagebuilder/dockerfile/command"

	"github.com/strata-build/strata/images/standby"
)

// copiers is how many processes buildah has at work at once for a COPY or ADD: one that
// reads and one that writes.
const copiers = 2

// StandBy has the processes ready that the copies of a Containerfile need, until it has
// been built. It may be called twice.
func (e *Engine) StandBy(file *Containerfile) {
	if e.standby != nil || !file.copies() {
		return
	}
	var err error
	if e.standby, err = standby.Start(e.tmp, copiers); err != nil {
		e.log.Debug("Each copy starts its processes itself", "reason", err)
	}
}

// standDown ends what stands by.
func (e *Engine) standDown() {
	if e.standby != nil {
		e.log.Debug("Work of copies that processes did which stood by", "pieces", e.standby.Close())
		e.standby = nil
	}
}

// copies tells whether the Containerfile has a step that copies something.
func (c *Containerfile) copies() bool {
	all := func(string) bool { return true }
	return c.has(command.Copy, all) || c.has(command.Add, all)
}
