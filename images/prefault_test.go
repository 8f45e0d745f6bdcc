package images

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
)

// mappings is what a process has mapped of its program, where that is all, and elsewhere.
type mappings struct{ Whole, Partly []string }

func init() {
	processes["mapped"] = func() any {
		smaps, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			return err
		}
		program, err := os.Readlink("/proc/self/exe")
		if err != nil {
			return err
		}
		var m mappings
		var mapping string
		var size, resident int // KiB
		for lines := bufio.NewScanner(bytes.NewReader(smaps)); lines.Scan(); {
			switch name, value, _ := strings.Cut(lines.Text(), ":"); {
			case strings.Contains(name, "-"):
				mapping = lines.Text()
			case !strings.HasSuffix(mapping, " "+program):
			case name == "Size":
				_, _ = fmt.Sscan(value, &size)
			case name == "Rss":
				_, _ = fmt.Sscan(value, &resident)
				if what := fmt.Sprintf("%d of %d KiB: %s", resident, size, mapping); size == resident {
					m.Whole = append(m.Whole, what)
				} else {
					m.Partly = append(m.Partly, what)
				}
			}
		}
		return m
	}
}

// Of a program as large as this one, much is never used, and yet mapped in a process that
// has begun.
func TestTheProgramIsMapped(t *testing.T) {
	var m mappings
	inProcess(t, "mapped", nil, &m)
	if len(m.Partly) > 0 || len(m.Whole) < 3 { // code, constants and data
		t.Errorf("not all is mapped: %q; all of %q", m.Partly, m.Whole)
	}
}
