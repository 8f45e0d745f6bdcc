package images

import "testing"

func TestSpaceNeeded(t *testing.T) {
	sizes := []uint64{100 << 20, 10 << 20, 0, 1 << 20}
	for _, s := range []struct {
		name         string
		sizes        []uint64
		vfs          bool
		packed, need uint64
	}{
		{"nothing", nil, false, 0, 0},
		{"one layer", sizes[:1], false, 100 << 20, 410 << 20},
		{"layers", sizes, false, 111 << 20, 455*1<<20 + 104857}, // 111 + 344.1 MiB
		// 111 + 310 + 341 + 341 + 344.1 MiB
		{"layers with vfs", sizes, true, 111 << 20, 1447*1<<20 + 104857},
	} {
		t.Run(s.name, func(t *testing.T) {
			packed, need := spaceNeeded(s.sizes, s.vfs)
			if packed != s.packed || need>>10 != s.need>>10 {
				t.Errorf("%d packed, %d needed; want %d, %d", packed, need, s.packed, s.need)
			}
		})
	}
}
