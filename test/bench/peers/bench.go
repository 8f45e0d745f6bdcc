package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/strata-build/strata/test/bench/measure"
)

// bench runs builders in turn.
type bench struct {
	// dir is where everything is: bases, what builders keep, logs.
	dir  string
	rows []builder
	// rounds is how often each kind is run.
	rounds int
	// patience is how long a run waits at most for a quiet machine.
	patience time.Duration
	started  time.Time
	// log is told what happens; records gets each run as a line of JSON.
	log, records io.Writer

	// programs are directories and files that are run.
	programs []string
	// bases is the registry with the base images, dest the one to which is pushed.
	bases, dest *server

	trashed int
}

// freeWanted is what the trash has to leave free on the disk, in bytes: a run with vfs
// writes 20 GB.
const freeWanted = 30 << 30

func (b *bench) basesDir() string { return filepath.Join(b.dir, "bases") }
func (b *bench) workDir() string  { return filepath.Join(b.dir, "work") }

// run runs one kind with all rows, round after round.
func (b *bench) run(ctx context.Context, k kind) ([]record, error) {
	if err := b.discard(b.workDir()); err != nil { // what a benchmark left that was ended
		return nil, err
	}
	var below v1.Image
	if k.base != nil {
		if err := provide(ctx, b.bases.host(), k.base, b.log); err != nil {
			return nil, fmt.Errorf("making the base image: %w", err)
		}
		var err error
		if below, err = image(ctx, b.bases.host()+"/"+k.base.repository()+tag); err != nil {
			return nil, err
		}
	}
	rows := slices.DeleteFunc(slices.Clone(b.rows), func(row builder) bool { return row.only != "" && row.only != k.letter })
	var all []record
	for round := range b.rounds {
		for i := range rows {
			row := rows[(i+round)%len(rows)] // none is always the first
			work := filepath.Join(b.workDir(), strings.ReplaceAll(row.name, "/", "_"))
			t := &trial{
				bench: b, kind: k, row: row, round: round, below: below,
				dir: work, store: filepath.Join(work, "store"), content: filepath.Join(work, "registry"),
			}
			r, err := t.run(ctx)
			if err != nil {
				return all, fmt.Errorf("case %s, %s: %w", k.letter, row.name, err)
			}
			if ctx.Err() != nil {
				return all, ctx.Err()
			}
			if err := json.NewEncoder(b.records).Encode(r); err != nil {
				return all, err
			}
			fmt.Fprintln(b.log, r)
			all = append(all, r)
		}
	}
	return all, b.discard(b.workDir())
}

// trial is one run of one row. Errors of its methods are the benchmark's own, unless
// they say that they are the builder's, which end up in the record.
type trial struct {
	*bench
	kind  kind
	row   builder
	round int
	below v1.Image // the base, nil for none

	dir            string // of what follows
	store, content string // of the builder, and of the registry to which is pushed
	builds         []build
	log            *os.File // what the builder writes
}

func (t *trial) run(ctx context.Context) (record, error) {
	r := record{Started: t.started, Case: t.kind.letter, Title: t.kind.title, Row: t.row.name, Peer: t.row.peer, Round: t.round}
	if err := t.prepare(); err != nil {
		return r, err
	}
	defer t.log.Close()
	if err := settle(t.bench.log, append([]string{t.basesDir()}, t.programs...)...); err != nil {
		return r, err
	}
	failed, err := t.earlier(ctx)
	if err == nil && failed == nil {
		failed, err = t.measure(ctx, &r)
	}
	r.fail(failed)
	if !t.kind.again {
		err = errors.Join(err, t.discard(t.store), t.discard(t.content))
	}
	return r, err
}

// prepare makes what the builder finds: a directory for its store, the registry, the
// contexts.
func (t *trial) prepare() error {
	logs := filepath.Join(t.bench.dir, "logs")
	err := errors.Join(os.MkdirAll(t.store, 0o755), os.MkdirAll(logs, 0o755))
	if err != nil {
		return err
	}
	baseHost := t.bases.host()
	if t.kind.same {
		baseHost = t.dest.host()
		if err := copyLinks(t.basesDir(), t.content); err != nil {
			return err
		}
	}
	if t.builds, err = t.kind.write(t.dir, baseHost, t.dest.host()); err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%s-%s-%d.log", t.started.Format("0102-150405"), t.kind.letter, filepath.Base(t.dir), t.round)
	if t.log, err = os.Create(filepath.Join(logs, name)); err != nil {
		return err
	}
	return t.dest.serve(t.content)
}

// earlier does what happened before the run that is measured. failed is an error of the
// builder.
func (t *trial) earlier(ctx context.Context) (failed, err error) {
	switch one := t.builds[0]; {
	case t.kind.again:
		if _, err := image(ctx, one.tag); err != nil { // the first round
			if _, failed, err = t.start(""); failed != nil || err != nil {
				return failed, err
			}
		}
		return nil, os.WriteFile(filepath.Join(one.context, "last.conf"), fmt.Appendf(nil, "changed %d\n", t.round), 0o644)
	case t.kind.failed:
		if err := os.WriteFile(one.secret, nil, 0o600); err != nil { // the step wants one with something in it
			return nil, err
		}
		if _, failed, err = t.start(""); err == nil && failed == nil {
			return errors.New("the attempt that was to fail did not"), nil
		}
		return nil, errors.Join(err, os.WriteFile(one.secret, []byte(secretText), 0o600))
	}
	return nil, nil
}

// start runs the builder, in a control group if one is named. failed is its error.
func (t *trial) start(group string) (c measure.Cost, failed, err error) {
	s, err := t.row.script(job{store: t.store, builds: t.builds, resume: t.kind.again || t.kind.failed, hosts: []string{t.bases.host(), t.dest.host()}})
	if err != nil {
		return c, nil, err
	}
	s.Group = group
	line, err := s.line()
	if err != nil {
		return c, nil, err
	}
	if c, failed = measure.Run(t.log, line...); failed != nil {
		failed = fmt.Errorf("its end was no success, see %s", t.log.Name())
	}
	return c, failed, nil
}

// measure runs the builder on a quiet machine and writes what it took into the record.
func (t *trial) measure(ctx context.Context, r *record) (failed, err error) {
	group, endGroup, err := limitMemory(t.kind.memory)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, endGroup()) }()
	had, err := diskUsage(t.content)
	if err != nil {
		return nil, err
	}
	if err := awaitQuiet(ctx, t.patience); err != nil {
		return nil, err
	}
	t.dest.listener.reset()
	if t.kind.cut {
		size, err := compressed(t.below)
		if err != nil {
			return nil, err
		}
		t.dest.listener.cut(size / 2)
	}
	before, err := readLoad()
	if err != nil {
		return nil, err
	}
	cost, failed, err := t.start(group)
	if err != nil {
		return nil, err
	}
	after, err := readLoad()
	if err != nil {
		return nil, err
	}
	r.Sent, r.Cuts = t.dest.listener.counts()
	if failed == nil {
		r.add(cost, after.since(before))
		failed = t.check(ctx, r.Cuts)
	}
	if parts, err := os.ReadFile(filepath.Join(t.store, partsFile)); err == nil {
		if err := json.Unmarshal(parts, &r.Parts); err != nil {
			return failed, err
		}
	}
	if r.Store, err = diskUsage(t.store); err != nil {
		return failed, err
	}
	r.Grown, err = diskUsage(t.content)
	r.Grown -= had
	return failed, err
}

// check returns an error unless what was to happen has.
func (t *trial) check(ctx context.Context, cuts int) error {
	if t.kind.cut && cuts != 1 {
		return fmt.Errorf("the connections were cut %d times", cuts)
	}
	for _, one := range t.builds {
		if err := check(ctx, one.tag, t.below); err != nil {
			return err
		}
	}
	return nil
}

// discard takes a directory out of the way. It is not removed before the disk gets
// short, and the kernel is busy with it for a while.
func (b *bench) discard(dir string) error {
	trash := filepath.Join(b.dir, "trash")
	if err := os.MkdirAll(trash, 0o755); err != nil {
		return err
	}
	b.trashed++
	err := os.Rename(dir, filepath.Join(trash, fmt.Sprint(b.started.UnixNano(), "-", b.trashed)))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	free, err := freeBytes(b.dir)
	if err != nil || free >= freeWanted {
		return err
	}
	return os.RemoveAll(trash)
}

// selectRows keeps the rows with these names; none stands for all.
func selectRows(rows []builder, names []string) ([]builder, error) {
	if len(names) == 0 {
		return rows, nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(rows, func(b builder) bool { return b.name == name }) {
			return nil, fmt.Errorf("there is no row %q", name)
		}
	}
	return slices.DeleteFunc(rows, func(b builder) bool { return !slices.Contains(names, b.name) }), nil
}
