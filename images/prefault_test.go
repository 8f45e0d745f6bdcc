package images

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
)

// Of a program as large as this one, much is never used.
func TestTheProgramIsMapped(t *testing.T) {
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer smaps.Close()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	var mapping string
	var size, resident int // KiB
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		switch name, value, _ := strings.Cut(lines.Text(), ":"); {
		case strings.Contains(name, "-"):
			mapping = lines.Text()
		case !strings.HasSuffix(mapping, " "+program):
		case name == "Size":
			fmt.Sscan(value, &size)
		case name == "Rss":
			fmt.Sscan(value, &resident)
			if found++; size != resident {
				t.Errorf("%d of %d KiB are mapped: %s", resident, size, mapping)
			}
		}
	}
	if found < 3 { // code, constants and data
		t.Error("nothing is mapped of " + program)
	}
}
