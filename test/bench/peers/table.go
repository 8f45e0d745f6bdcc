package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// runs are the records of one row in one case.
type runs struct {
	row  string
	peer bool
	all  []record
}

// good are the runs that count: those that succeeded on a quiet machine, or, where
// there is none, all that succeeded.
func (r runs) good() []record {
	succeeded := slices.DeleteFunc(slices.Clone(r.all), func(r record) bool { return r.Error != "" })
	quiet := slices.DeleteFunc(slices.Clone(succeeded), func(r record) bool { return r.Noisy })
	if len(quiet) > 0 {
		return quiet
	}
	return succeeded
}

// n says how many runs count, and what became of the others.
func (r runs) n() string {
	failed, noisy := 0, 0
	for _, one := range r.all {
		switch {
		case one.Error != "":
			failed++
		case one.Noisy:
			noisy++
		}
	}
	text := fmt.Sprint(len(r.good()))
	switch {
	case noisy > 0 && noisy+failed == len(r.all):
		text += ", noisy"
	case noisy > 0:
		text += fmt.Sprintf(" (and %d noisy)", noisy)
	}
	if failed > 0 {
		text += fmt.Sprintf(", **%d failed**", failed)
	}
	return text
}

// median is the middle one of a figure of the runs that count, or the mean of the two in
// the middle.
func (r runs) median(figure func(record) float64) float64 {
	good := r.good()
	values := make([]float64, len(good))
	for i, one := range good {
		values[i] = figure(one)
	}
	return median(values)
}

func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// ratio is the median of the ratios to another row, round by round. ok tells whether
// there is a round in which both count.
func (r runs) ratio(to runs, figure func(record) float64) (value float64, ok bool) {
	var ratios []float64
	for _, one := range r.good() {
		for _, other := range to.good() {
			if one.Started.Equal(other.Started) && one.Round == other.Round {
				ratios = append(ratios, figure(one)/figure(other))
			}
		}
	}
	if len(ratios) == 0 {
		return 0, false
	}
	return median(ratios), true
}

// group returns the records by case and, within it, by row, in the order in which they
// come first.
func group(records []record) [][]runs {
	var cases [][]runs
	var titles []string
	for _, r := range records {
		i := slices.Index(titles, r.Case+r.Title)
		if i < 0 {
			i = len(cases)
			titles, cases = append(titles, r.Case+r.Title), append(cases, nil)
		}
		j := slices.IndexFunc(cases[i], func(x runs) bool { return x.row == r.Row })
		if j < 0 {
			j = len(cases[i])
			cases[i] = append(cases[i], runs{row: r.Row, peer: r.Peer})
		}
		cases[i][j].all = append(cases[i][j].all, r)
	}
	return cases
}

func wall(r record) float64    { return r.Wall }
func cpu(r record) float64     { return r.CPU }
func peak(r record) float64    { return float64(r.Peak) }
func written(r record) float64 { return float64(r.Written) }
func store(r record) float64   { return float64(r.Store) }
func sent(r record) float64    { return float64(r.Sent) }

// fastest is the peer with the least median of the wall time, nil if there is none.
func fastest(rows []runs) *runs {
	var best *runs
	for i, r := range rows {
		if r.peer && len(r.good()) > 0 && (best == nil || r.median(wall) < best.median(wall)) {
			best = &rows[i]
		}
	}
	return best
}

// writeTables writes the records as tables in Markdown: one for each case, and one for
// all sizes of bases.
func writeTables(out io.Writer, records []record) {
	var sizes [][]runs
	for _, rows := range group(records) {
		first := rows[0].all[0]
		if first.Case == growthCase {
			sizes = append(sizes, rows)
			continue
		}
		fmt.Fprintf(out, "### %s: %s\n\n", first.Case, first.Title)
		writeTable(out, rows)
	}
	if len(sizes) > 0 {
		writeGrowth(out, sizes)
	}
}

func writeTable(out io.Writer, rows []runs) {
	best := fastest(rows)
	writeHead(out, "", "n", "wall s (least to most)", "ratio", "CPU s", "ratio", "peak MiB", "written GB", "store GB", "sent MB")
	for _, r := range rows {
		ratio := func(figure func(record) float64) string {
			if best == nil {
				return ""
			}
			value, ok := r.ratio(*best, figure)
			if !ok {
				return ""
			}
			return fmt.Sprintf("%.2f", value)
		}
		writeLine(out, r.row, r.n(), r.walls(), ratio(wall), r.figure("%.1f", 1, cpu), ratio(cpu),
			r.figure("%.0f", 1<<20, peak), r.figure("%.2f", 1e9, written), r.figure("%.2f", 1e9, store), r.figure("%.1f", 1e6, sent))
	}
	fmt.Fprintln(out)
	if best != nil {
		fmt.Fprintf(out, "Ratios are to %s, the fastest peer.\n", best.row)
	}
	for _, r := range rows {
		if parts := r.parts(); parts != "" {
			fmt.Fprintf(out, "The parts of the %s: %s.\n", r.row, parts)
		}
	}
	writeFailures(out, rows)
}

func writeGrowth(out io.Writer, sizes [][]runs) {
	fmt.Fprint(out, "### growth: by the size of the base\n\n")
	writeHead(out, "base", "", "n", "wall s (least to most)", "CPU s", "peak MiB", "written GB", "store GB", "sent MB")
	for _, rows := range sizes {
		for _, r := range rows {
			writeLine(out, r.all[0].Title, r.row, r.n(), r.walls(), r.figure("%.1f", 1, cpu),
				r.figure("%.0f", 1<<20, peak), r.figure("%.2f", 1e9, written), r.figure("%.2f", 1e9, store), r.figure("%.1f", 1e6, sent))
		}
	}
	fmt.Fprintln(out)
	for _, rows := range sizes {
		writeFailures(out, rows)
	}
}

func writeHead(out io.Writer, names ...string) {
	writeLine(out, names...)
	fmt.Fprintln(out, strings.Repeat("|---", len(names))+"|")
}

func writeLine(out io.Writer, cells ...string) {
	fmt.Fprintln(out, "| "+strings.Join(cells, " | ")+" |")
}

func writeFailures(out io.Writer, rows []runs) {
	for _, r := range rows {
		for _, one := range r.all {
			if one.Error != "" {
				fmt.Fprintf(out, "%s failed in round %d: %s.\n", r.row, one.Round+1, one.Error)
			}
		}
	}
	fmt.Fprintln(out)
}

// walls are the median, the least and the most of the wall times.
func (r runs) walls() string {
	good := r.good()
	if len(good) == 0 {
		return ""
	}
	byWall := func(a, b record) int { return cmp.Compare(a.Wall, b.Wall) }
	return fmt.Sprintf("%.2f (%.2f to %.2f)", r.median(wall), slices.MinFunc(good, byWall).Wall, slices.MaxFunc(good, byWall).Wall)
}

// figure is the median of a figure, as text in a unit.
func (r runs) figure(format string, unit float64, of func(record) float64) string {
	if len(r.good()) == 0 {
		return ""
	}
	return fmt.Sprintf(format, r.median(of)/unit)
}

// parts says what the parts of a physical limit took.
func (r runs) parts() string {
	good := r.good()
	if len(good) == 0 {
		return ""
	}
	var texts []string
	for _, name := range partNames {
		if _, ok := good[0].Parts[name]; ok {
			texts = append(texts, fmt.Sprintf("%s %.1f s", name, r.median(func(r record) float64 { return r.Parts[name] })))
		}
	}
	return strings.Join(texts, ", ")
}
