package images

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.podman.io/storage"
	graphdriver "go.podman.io/storage/drivers"
	"go.podman.io/storage/drivers/overlay"
	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
)

// The drivers between which a build chooses.
const (
	driverOverlay = "overlay"
	driverVFS     = "vfs"
)

// fuseDevice is what fuse-overlayfs needs to be able to open.
const fuseDevice = "/dev/fuse"

// lookAtRoot finds out where the store is, and whether it can be written to.
func (e *Engine) lookAtRoot() (Finding, error) {
	var err error
	if e.options, err = storeOptions(e.config); err != nil {
		return Finding{}, err
	}
	root := e.options.GraphRoot
	err = tryWriting(root)
	if err != nil && isFull(err) && freeAbandoned(root, e.log) {
		freeKept(root)
		err = tryWriting(root)
	}
	if err != nil {
		return cannotWrite("the store", root, err), nil
	}
	if err := os.MkdirAll(e.options.RunRoot, 0o700); err != nil {
		// Such as /run on a root filesystem that is read-only.
		e.options.RunRoot = filepath.Join(root, "run")
	}
	return ok("%s on %s", root, filesystemOf(root)), nil
}

// storeOptions are those of containers/storage, with what flags say instead.
func storeOptions(config Config) (storage.StoreOptions, error) {
	options, err := storage.DefaultStoreOptions()
	if err != nil {
		return options, invalid("the configuration of containers/storage cannot be read", err)
	}
	options.GraphDriverOptions = slices.Clone(options.GraphDriverOptions)
	if config.StorageDriver != "" && config.StorageDriver != options.GraphDriverName {
		options.GraphDriverName = config.StorageDriver
		// Options in storage.conf are those of the driver that is named there.
		options.GraphDriverOptions = nil
	}
	if config.StorageRoot != "" {
		root, err := filepath.Abs(config.StorageRoot)
		if err != nil {
			return options, unavailable("--storage-root "+config.StorageRoot, err)
		}
		if root != options.GraphRoot {
			options.GraphRoot, options.ImageStore = root, ""
			options.RunRoot = filepath.Join(root, "run")
		}
	}
	return options, nil
}

// driver is one way to store layers.
type driver struct {
	name string
	// program mounts overlays in the place of the kernel, empty for none.
	program string
	// why is why nothing better was chosen, empty for the best.
	why string
}

// priorImages is why a driver is taken that is not the best.
const priorImages = "the images in it were stored so"

// drivers lists the ways to store layers under the root of the store, the best first, of
// which the first that can be opened is taken. Where there is none, why says why.
func (e *Engine) drivers() (all []driver, why string) {
	root, configured := e.options.GraphRoot, e.options.GraphDriverName
	program := optionOf(e.options.GraphDriverOptions, "mount_program")
	// What was named, or what is there and is not to be lost sight of.
	only, because := e.config.StorageDriver, ""
	if prior := priorDriver(root); only == "" && prior != "" && (configured == "" || configured == prior) {
		only, because = prior, priorImages
	}
	switch {
	case only != "" && only != driverOverlay:
		return []driver{{name: only, why: because}}, ""
	case only == "" && configured != "" && configured != driverOverlay:
		all = append(all, driver{name: configured})
	}
	fuseErr := tryFuse()
	if program != "" && fuseErr == nil {
		all = append(all, driver{name: driverOverlay, program: program})
	}
	switch on := filesystemOf(root); {
	case madeByProgram(root):
		why = "the images in it were stored by a mount program"
	case carriesOverlay(root):
		all = append(all, driver{name: driverOverlay})
	default:
		why = fmt.Sprintf("%s at %s does not carry native overlay", on.kind, on.mountpoint)
	}
	fuse := lookPath("fuse-overlayfs")
	switch {
	case fuseErr == nil && fuse != "":
		all = append(all, driver{name: driverOverlay, program: fuse, why: why})
	case fuse != "":
		why += fmt.Sprintf(", and fuse-overlayfs cannot open %s (%v)", fuseDevice, rootCause(fuseErr))
	default:
		why += ", and fuse-overlayfs is not installed"
	}
	if only != "" {
		return all, why
	}
	return append(all, driver{name: driverVFS, why: why}), ""
}

// madeByProgram tells whether the overlays of a store are those of a mount program,
// which the kernel's own do not understand: the library has made a note of it.
func madeByProgram(root string) bool {
	note, err := os.ReadFile(filepath.Join(root, driverOverlay, ".has-mount-program"))
	return err == nil && strings.TrimSpace(string(note)) == "true"
}

// tryFuse opens the device that fuse-overlayfs needs.
func tryFuse() error {
	var stat unix.Stat_t
	if err := unix.Stat(fuseDevice, &stat); err != nil {
		return err
	}
	// devices.txt: 10 is that of miscellaneous ones, 229 of FUSE.
	if stat.Mode&unix.S_IFMT != unix.S_IFCHR || stat.Rdev != unix.Mkdev(10, 229) {
		return errors.New("it is another file")
	}
	device, err := os.OpenFile(fuseDevice, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return device.Close()
}

// priorDriver is the driver of the layers that are in a store already, empty for none
// or several.
func priorDriver(root string) (prior string) {
	for _, name := range []string{driverOverlay, driverVFS} {
		// The smallest file has an empty list.
		info, err := os.Stat(filepath.Join(root, name+"-layers", "layers.json"))
		if err == nil && info.Size() > 2 {
			if prior != "" {
				return ""
			}
			prior = name
		}
	}
	return prior
}

// carriesOverlay tries, beside the store, whether the kernel mounts overlays on its
// filesystem. The library does the same in the store itself, and there leaves behind
// what makes it believe that the store has overlays.
func carriesOverlay(root string) bool {
	if priorDriver(root) == driverOverlay && !madeByProgram(root) {
		return true // it has before; the library tries again when it opens the store
	}
	dir, err := os.MkdirTemp(root, ".strata-trial-")
	if err != nil {
		return false
	}
	defer func() { _ = os.RemoveAll(dir) }()
	supported, err := overlay.SupportsNativeOverlay(filepath.Join(dir, driverOverlay), filepath.Join(dir, "run"))
	return err == nil && supported
}

// lookAtDriver opens the store with the best driver that works.
func (e *Engine) lookAtDriver() (Finding, error) {
	if err := checkProgram(optionOf(e.options.GraphDriverOptions, "mount_program")); err != nil {
		return Finding{}, err
	}
	candidates, why := e.drivers()
	var failed []string
	last := errors.New(why)
	for _, d := range candidates {
		options := e.options
		options.GraphDriverName, options.GraphDriverPriority = d.name, nil
		options.GraphDriverOptions = e.driverOptions(d)
		store, err := storage.GetStore(options)
		if err == nil {
			e.store, e.options = store, options
			if len(failed) > 0 {
				d.why = strings.Join(append(failed, d.why), "; ")
			}
			return d.describe(e.options.GraphRoot), nil
		}
		last = err
		if isFull(err) {
			return cannotWrite("the store", e.options.GraphRoot, err), nil
		}
		failed = append(failed, fmt.Sprintf("%s cannot be used (%v)", d.name, err))
		if !errors.Is(err, graphdriver.ErrNotSupported) && !errors.Is(err, graphdriver.ErrPrerequisites) && !errors.Is(err, graphdriver.ErrIncompatibleFS) {
			break
		}
	}
	f := failure(result.ReasonStorageUnavailable, "the store %s cannot be opened: %s", e.options.GraphRoot, oneLine(last.Error()))
	switch {
	case e.config.StorageDriver == driverOverlay:
		f = f.hinted("name no driver, which finds one that works here, or a --storage-root on another filesystem than %s", filesystemOf(e.options.GraphRoot).kind)
	case priorDriver(e.options.GraphRoot) != "":
		f = f.hinted("name another --storage-root: the images in this one were stored with the driver %s, which does not work here", priorDriver(e.options.GraphRoot))
	default:
		f = f.hinted("name another directory, with --storage-root")
	}
	return f, nil
}

// driverOptions are the options of the store for a driver.
func (e *Engine) driverOptions(d driver) []string {
	options := slices.Clone(e.options.GraphDriverOptions)
	if d.name != e.options.GraphDriverName && e.options.GraphDriverName != "" {
		options = nil
	}
	options = slices.DeleteFunc(options, func(o string) bool { return optionName(o) == "mount_program" })
	if d.program != "" {
		options = append(options, d.name+".mount_program="+d.program)
	}
	if e.config.SingleID {
		// Files of others than root become root's, instead of failing the pull.
		options = append(options, d.name+".ignore_chown_errors=true")
	}
	return options
}

func optionName(option string) string {
	name, _, _ := strings.Cut(option, "=")
	return name[strings.LastIndexByte(name, '.')+1:]
}

// optionOf is the value of an option of a driver, empty where it is not set.
func optionOf(options []string, name string) string {
	for _, o := range options {
		if optionName(o) == name {
			_, value, _ := strings.Cut(o, "=")
			return value
		}
	}
	return ""
}

// checkProgram says what is wrong with a mount_program that storage.conf names.
func checkProgram(program string) error {
	if program == "" {
		return nil
	}
	if info, err := os.Stat(program); err != nil || info.IsDir() {
		return failure(result.ReasonStorageUnavailable, "storage.conf names the mount_program %s, which is not there", program).
			hinted("install it, or take mount_program out of storage.conf").Err()
	}
	return nil
}

// describe says what was chosen.
func (d driver) describe(root string) Finding {
	on := filesystemOf(root)
	switch {
	case d.name == driverVFS:
		f := warning("the store uses vfs, which copies every layer in full: a build of many layers is slow and needs several times the space of the image (%s)", on)
		if d.why != "" {
			f.Found += ", since " + d.why
		}
		if d.why == "" || d.why == priorImages {
			return f.hinted("use a new --storage-root, and name no driver")
		}
		return f.hinted("put the store on a filesystem that is not %s, such as an emptyDir volume", on.kind)
	case d.program != "":
		f := ok("%s by %s on %s", d.name, d.program, on)
		if d.why != "" {
			f.Found += ", since " + d.why
		}
		return f
	case d.name == driverOverlay:
		return ok("native overlay on %s", on)
	}
	return ok("%s on %s", d.name, on)
}
