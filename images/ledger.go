package images

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"

	"go.podman.io/storage"
	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/images/blobs"
	"github.com/strata-build/strata/images/layers"
)

// ledgerDir is the directory in a store where builds say what is theirs there.
const ledgerDir = "strata"

// ledger is what one build has in a store: its directory of temporary files, its
// working containers, which have its name, the layers that it made, and the compressed
// ones that it keeps for its push, in a directory of its name. It is a file
// that is locked as long as the build lives, whatever ends it, so that another
// build knows what was left behind.
type ledger struct {
	// name is that of the build: it is in the names of its containers.
	name string
	dir  string
	// users is a file that each build that lives has locked, so that one which
	// removes layers knows that it is alone.
	users *os.File

	mu     sync.Mutex
	file   *os.File
	layers []string // that were entered
}

// The kinds of entries, one a line.
const (
	tempEntry  = "temp "
	layerEntry = "layer "
)

// reserve is space, in bytes, that a ledger keeps until something is to be removed: on a
// full filesystem a store can remove nothing, since it has to write what is left.
const reserve = 1 << 20

// openLedger opens a ledger for a new build in the store at root, whose temporary
// files will be in a directory of its name in tempParent. It waits for a build that
// removes layers, and gives free what needs no store to be given free.
func openLedger(root, tempParent string, log *slog.Logger) (*ledger, error) {
	l := &ledger{dir: filepath.Join(root, ledgerDir)}
	err := os.MkdirAll(l.dir, 0o700)
	if err == nil {
		l.users, err = os.OpenFile(filepath.Join(l.dir, "users"), os.O_CREATE|os.O_RDWR, 0o600)
	}
	if err == nil {
		err = flock(l.users, syscall.LOCK_SH)
	}
	if err == nil {
		freeAbandoned(root, log)
		err = l.begin(tempParent)
	}
	if err != nil {
		l.close(false)
		return nil, err
	}
	return l, nil
}

// begin makes the file. It gets its name when it is locked and says where temporary
// files will be: nobody finds it without.
func (l *ledger) begin(tempParent string) (err error) {
	if l.file, err = os.CreateTemp(l.dir, tempPrefix+"*"+unnamed); err != nil {
		return err
	}
	path := strings.TrimSuffix(l.file.Name(), unnamed)
	l.name = filepath.Base(path)
	if err := flock(l.file, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(l.file, "%s%s\n", tempEntry, filepath.Join(tempParent, l.name)); err != nil {
		return err
	}
	// Without it a build on a filesystem that runs full may leave something behind.
	_ = unix.Fallocate(int(l.file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, reserve)
	return os.Rename(l.file.Name(), path)
}

// unnamed ends the name of a ledger that is not begun.
const unnamed = ".new"

// layer enters a layer that the build is about to make.
func (l *ledger) layer(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.layers = append(l.layers, id)
	_, err := fmt.Fprintf(l.file, "%s%s\n", layerEntry, id)
	return err
}

// freeReserve gives the reserve free.
func (l *ledger) freeReserve() {
	if info, err := l.file.Stat(); err == nil {
		_ = l.file.Truncate(info.Size())
	}
}

// made lists the layers that were entered, in their order.
func (l *ledger) made() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.layers)
}

// alone tells whether no other build lives in this store; until the ledger is closed
// none begins.
func (l *ledger) alone() bool { return flock(l.users, syscall.LOCK_EX|syscall.LOCK_NB) == nil }

// lockLayers keeps other builds, and other goroutines of this one, from putting a staged
// layer in place until unlock is called.
func (l *ledger) lockLayers() (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(l.dir, "layers"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(file, syscall.LOCK_EX); err != nil {
		_ = file.Close()
		return nil, err
	}
	return func() { _ = file.Close() }, nil
}

// close ends the build. keep leaves the ledger for another build.
func (l *ledger) close(keep bool) {
	if l.file != nil {
		if !keep {
			_ = os.Remove(filepath.Join(l.dir, l.name))
			_ = os.Remove(l.file.Name()) // where it was never given its name
		}
		_ = l.file.Close()
	}
	if l.users != nil {
		_ = l.users.Close()
	}
}

// abandoned is what a build that has ended left.
type abandoned struct {
	path   string
	name   string
	temp   string
	layers []string // in the order in which they were made
}

// abandoned lists what builds left that were killed, or that could not remove it.
func (l *ledger) abandoned() []abandoned { return abandonedIn(l.dir) }

// freeKept gives free the blobs that builds kept which have ended: on a filesystem that
// is full there is no room for them.
func freeKept(root string) {
	for _, a := range abandonedIn(filepath.Join(root, ledgerDir)) {
		_ = a.kept().Clear() // what cannot be removed is found again
	}
}

// freeAbandoned gives free what builds left in the store at root that were killed, as
// far as it needs no store, and tells whether there was anything.
func freeAbandoned(root string, log *slog.Logger) (found bool) {
	for _, a := range abandonedIn(filepath.Join(root, ledgerDir)) {
		found = true
		a.free(log)
	}
	if found {
		layers.RemoveStale(filepath.Join(root, driverOverlay))
	}
	return found
}

// abandonedIn reads the ledgers in a directory that are of builds which have ended.
func abandonedIn(dir string) (all []abandoned) {
	paths, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
	if err != nil {
		return nil
	}
	for _, path := range paths {
		if strings.HasSuffix(path, unnamed) {
			continue
		}
		if a, ok := readAbandoned(path); ok {
			all = append(all, a)
		}
	}
	return all
}

// readAbandoned reads the ledger of a build that has ended; ok is false for others.
func readAbandoned(path string) (a abandoned, ok bool) {
	file, err := os.Open(path)
	if err != nil {
		return a, false
	}
	defer file.Close()
	if flock(file, syscall.LOCK_SH|syscall.LOCK_NB) != nil {
		return a, false
	}
	a = abandoned{path: path, name: filepath.Base(path)}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if temp, found := strings.CutPrefix(lines.Text(), tempEntry); found && filepath.Base(temp) == a.name {
			a.temp = temp
		} else if id, found := strings.CutPrefix(lines.Text(), layerEntry); found {
			a.layers = append(a.layers, id)
		}
	}
	return a, lines.Err() == nil
}

// free removes what needs no store, and tells whether it is gone.
func (a abandoned) free(log *slog.Logger) bool {
	if info, err := os.Stat(a.path); err == nil {
		_ = os.Truncate(a.path, info.Size())
	}
	return a.temp == "" || removeTemp(a.temp, log)
}

// kept is where it kept blobs.
func (a abandoned) kept() *blobs.Dir { return keptBy(filepath.Dir(a.path), a.name) }

// removeUnnamed removes ledgers of builds that were killed before they began. The
// caller is alone.
func (l *ledger) removeUnnamed() {
	paths, _ := filepath.Glob(filepath.Join(l.dir, tempPrefix+"*"+unnamed))
	for _, path := range paths {
		_ = os.Remove(path)
	}
}

// flock locks a whole file. A signal is no reason to give up.
func flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// recordedStore is a store that enters the layers made in it in a ledger. Layers of
// working containers are not entered: they go with their containers.
type recordedStore struct {
	storage.Store
	ledger *ledger
	relay  *relay         // is told of what becomes a layer; nil for nobody
	stager *layers.Stager // makes layers, nil where it does not suit the store
	layers layerRecords
}

func newRecordedStore(store storage.Store, l *ledger, r *relay) *recordedStore {
	return &recordedStore{Store: store, ledger: l, relay: r, layers: layerRecords{store: store}}
}

var _ storage.Store = (*recordedStore)(nil)

// record enters a layer before it is made, unless there is one with this id, which
// somebody else made.
func (s *recordedStore) record(id string) error {
	if id == "" {
		return nil
	}
	if _, err := s.Layer(id); err == nil {
		return nil
	}
	return s.ledger.layer(id)
}

// Layer implements storage.Store.
func (s *recordedStore) Layer(id string) (*storage.Layer, error) {
	if layer := s.layers.layer(id); layer != nil {
		return layer, nil
	}
	return s.Store.Layer(id)
}

// Shutdown implements storage.Store.
func (s *recordedStore) Shutdown(force bool) ([]string, error) {
	s.layers.mu.Lock()
	s.layers.close()
	s.layers.mu.Unlock()
	return s.Store.Shutdown(force)
}

// CreateLayer implements storage.Store.
func (s *recordedStore) CreateLayer(id, parent string, names []string, mountLabel string, writeable bool, options *storage.LayerOptions) (*storage.Layer, error) {
	if err := s.record(id); err != nil {
		return nil, err
	}
	return s.Store.CreateLayer(id, parent, names, mountLabel, writeable, options)
}

// PutLayer implements storage.Store.
func (s *recordedStore) PutLayer(id, parent string, names []string, mountLabel string, writeable bool, options *storage.LayerOptions, diff io.Reader) (*storage.Layer, int64, error) {
	layer, size, err := s.putLayer(id, parent, names, mountLabel, writeable, options, diff)
	if err == nil && s.relay != nil {
		s.relay.committed(layer, diff)
	}
	return layer, size, err
}

// putLayer makes a layer in this process where it can, which saves one of its own.
func (s *recordedStore) putLayer(id, parent string, names []string, mountLabel string, writeable bool, options *storage.LayerOptions, diff io.Reader) (*storage.Layer, int64, error) {
	file, ok := diff.(io.ReadSeeker)
	if ok && s.stager != nil && len(names) == 0 && mountLabel == "" && !writeable && isPlain(options) {
		layer, err := s.stager.Put(id, parent, options.UncompressedDigest, file)
		if err == nil {
			return layer, layer.UncompressedSize, nil
		}
		if errors.Is(err, storage.ErrDuplicateID) {
			return layer, -1, storage.ErrDuplicateID
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return nil, -1, err
		}
	}
	if err := s.record(id); err != nil {
		return nil, -1, err
	}
	return s.Store.PutLayer(id, parent, names, mountLabel, writeable, options, diff)
}

// isPlain tells whether options say that a layer is an archive which is not compressed, the
// digest of that, and nothing else.
func isPlain(options *storage.LayerOptions) bool {
	return options != nil && options.UncompressedDigest != "" && reflect.DeepEqual(*options, storage.LayerOptions{
		OriginalDigest: options.UncompressedDigest, UncompressedDigest: options.UncompressedDigest, OriginalSize: options.OriginalSize,
	})
}

// ApplyStagedLayer implements storage.Store. It is storage.ErrDuplicateID that the layer
// is there: the store itself would remove its files and put the staged ones in their
// place, while another build may have them mounted.
func (s *recordedStore) ApplyStagedLayer(args storage.ApplyStagedLayerOptions) (*storage.Layer, error) {
	unlock, err := s.ledger.lockLayers()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if there, err := s.Layer(args.ID); err == nil {
		return there, storage.ErrDuplicateID
	}
	if err := s.record(args.ID); err != nil {
		return nil, err
	}
	return s.Store.ApplyStagedLayer(args)
}
