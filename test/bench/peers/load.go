package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// load is what the CPUs of the machine have done since it started.
type load struct {
	busy, idle, steal time.Duration
	// own is the part of busy that is of this process: the registries.
	own time.Duration
}

// tick is the unit of /proc/stat, which the kernel keeps at 1/100 s for programs.
const tick = time.Second / 100

func readLoad() (load, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return load{}, err
	}
	l, err := parseLoad(string(text))
	if err != nil {
		return load{}, err
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return load{}, err
	}
	l.own = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	return l, nil
}

func parseLoad(stat string) (load, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return load{}, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var spent [8]time.Duration // user, nice, system, idle, iowait, irq, softirq, steal
	for i := range spent {
		ticks, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil {
			return load{}, err
		}
		spent[i] = time.Duration(ticks) * tick
	}
	return load{
		busy:  spent[0] + spent[1] + spent[2] + spent[5] + spent[6],
		idle:  spent[3] + spent[4],
		steal: spent[7],
	}, nil
}

// since returns what happened since an earlier look.
func (l load) since(before load) load {
	return load{busy: l.busy - before.busy, idle: l.idle - before.idle, steal: l.steal - before.steal, own: l.own - before.own}
}

// noiseLimit is the part of one CPU that others may take before a run counts as noisy.
// The kernel's own threads, which write to the disk for the builder, are among them.
const noiseLimit = 0.3

// noisy tells whether others took so much during a run that its times say little.
func noisy(wall, others, steal time.Duration) bool {
	return float64(others+steal) > noiseLimit*float64(wall)
}

// awaitQuiet waits until the CPUs have been idle for 80 percent of two seconds, or
// until patience is over: what the run before left to be written is then on the disk.
func awaitQuiet(ctx context.Context, patience time.Duration) error {
	end := time.Now().Add(patience)
	before, err := readLoad()
	for err == nil && time.Now().Before(end) {
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
		var now load
		if now, err = readLoad(); err != nil {
			return err
		}
		if d := now.since(before); d.idle > 4*(d.busy+d.steal) {
			return nil
		}
		before = now
	}
	return err
}
