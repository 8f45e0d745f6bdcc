// Command peers builds the same image with the agent and with other builders, in turn,
// and compares what that takes: time, CPU, memory, bytes written and bytes sent. `make
// bench-peers` builds all of them and runs it; docs/performance.md says what it found.
//
// Everything is real: the base image is made of Debian's packages, registries are those of
// the distribution project on loopback, images are pulled, built, pushed and looked at
// afterwards. A builder starts with an empty store unless a case says otherwise, in a
// mount namespace of its own; the page cache is warm. It prints tables in Markdown and
// writes a line of JSON for each run into a file. A run that fails stays in both as
// failed; one during which the rest of the machine was busy is marked and counts only
// where there is no other.
//
// It needs root, and Debian for the base image.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/strata-build/strata/test/bench/measure"
)

func main() {
	if code, ok := measure.Main(); ok {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// startCase is the letter of the comparison of programs.
const startCase = "s"

// run does what the arguments say: it is the benchmark, or a process that the benchmark
// starts.
func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == scriptCommand:
		return runScript(ctx, args[1])
	case len(args) == 6 && args[0] == limitCommand:
		return runLimit(ctx, args[1:])
	}
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	var (
		cases    = flags.String("cases", "a,b,c,d,e,f,g,m,s", "cases to run, by their letters, or growth")
		rows     = flags.String("rows", "", "rows to run, by their names; all unless given")
		rounds   = flags.Int("n", 3, "how often each row runs in each case")
		agents   = flags.String("agent", "", "further agents to compare, each as path or name=path")
		bin      = flags.String("bin", "bin", "directory with the agent, and the peers in peer/ and cluster/")
		dir      = flags.String("dir", "dist/bench", "directory for bases, stores, logs and records; 40 GB free, 70 with vfs")
		patience = flags.Duration("quiet", 2*time.Minute, "how long to wait for a quiet machine before a run")
		report   = flags.Bool("report", false, "print the tables of the files of records that are the arguments, and run nothing")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *report {
		records, err := readRecords(flags.Args())
		if err != nil {
			return err
		}
		writeTables(os.Stdout, records)
		return nil
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("there is an argument too many: %s", flags.Arg(0))
	}
	p, err := findPrograms(*bin, list(*agents))
	if err != nil {
		return err
	}
	selected, err := selectRows(p.builders(), list(*rows))
	if err != nil {
		return err
	}
	if *dir, err = filepath.Abs(*dir); err != nil {
		return err
	}
	b := &bench{dir: *dir, rows: selected, rounds: *rounds, patience: *patience, programs: []string{p.peers, p.runc, "/proc/self/exe"}, started: time.Now().Truncate(time.Second), log: os.Stderr}
	for _, a := range p.agents {
		b.programs = append(b.programs, a.path)
	}
	all := append(kinds(debian{root: filepath.Join(*bin, "debian.tar"), cache: filepath.Join(*dir, "packages")}), growthKinds()...)
	return b.all(ctx, all, list(*cases), p)
}

// all runs the cases with these letters and prints their tables.
func (b *bench) all(ctx context.Context, known []kind, letters []string, p programs) (err error) {
	for _, letter := range letters {
		if letter != startCase && !slices.ContainsFunc(known, func(k kind) bool { return k.letter == letter }) {
			return fmt.Errorf("there is no case %q", letter)
		}
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	// Images have Go files in them, which are none of the module around the directory.
	if err := os.WriteFile(filepath.Join(b.dir, "go.mod"), []byte("module stores\n"), 0o644); err != nil {
		return err
	}
	path := filepath.Join(b.dir, b.started.Format("20060102-150405")+".jsonl")
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	b.records = file
	defer func() { err = errors.Join(err, file.Close()) }()
	for _, s := range []**server{&b.bases, &b.dest} {
		if *s, err = listen(); err != nil {
			return err
		}
		defer (*s).close()
	}
	if err := b.bases.serve(b.basesDir()); err != nil {
		return err
	}
	var records []record
	for _, k := range known {
		if !slices.Contains(letters, k.letter) {
			continue
		}
		more, err := b.run(ctx, k)
		records = append(records, more...)
		if err != nil {
			writeTables(os.Stdout, records) // what there is
			return err
		}
	}
	writeTables(os.Stdout, records)
	if slices.Contains(letters, startCase) {
		if err := p.writeStarts(os.Stdout); err != nil {
			return err
		}
	}
	fmt.Fprintln(b.log, "records:", path)
	return os.RemoveAll(filepath.Join(b.dir, "trash"))
}

// findPrograms returns the programs in a directory, and further agents.
func findPrograms(bin string, agents []string) (programs, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return programs{}, err
	}
	p := programs{agents: []named{{"agent", filepath.Join(bin, "agent")}}, peers: filepath.Join(bin, "peer"), runc: filepath.Join(bin, "cluster", "runc")}
	for _, text := range agents {
		name, path, ok := strings.Cut(text, "=")
		if !ok {
			name, path = "agent "+text, text
		}
		if path, err = filepath.Abs(path); err != nil {
			return programs{}, err
		}
		p.agents = append(p.agents, named{name, path})
	}
	wanted := []string{p.runc}
	for _, a := range p.agents {
		wanted = append(wanted, a.path)
	}
	for _, peer := range []string{"buildah", "buildkitd", "buildctl", "kaniko"} {
		wanted = append(wanted, filepath.Join(p.peers, peer))
	}
	for _, path := range wanted {
		if _, err := os.Stat(path); err != nil {
			return programs{}, fmt.Errorf("%w: run `make peers`", err)
		}
	}
	return p, nil
}

// readRecords reads files of records.
func readRecords(paths []string) (records []record, err error) {
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		for d := json.NewDecoder(bufio.NewReader(file)); ; {
			var r record
			if err := d.Decode(&r); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			records = append(records, r)
		}
	}
	return records, nil
}

// list splits a list at commas.
func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}
