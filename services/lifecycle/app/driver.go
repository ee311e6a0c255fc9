package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/debian"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/gvisor"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/image"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/workspace"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
)

// DriverConfig is for gVisor on this host. Everything has a default.
type DriverConfig struct {
	// CacheDir holds what is built or fetched once for a user: see SANDTRAIL_CACHE.
	CacheDir string
	// Runsc and Toolbox are paths of binaries to use instead of those that are fetched and built.
	Runsc, Toolbox string
	// Source is the top of the source tree, where the toolbox has to be built.
	Source string
	// Images are image references that are not pulled: each an OCI layout directory or a saved tar file.
	Images map[string]string
	// PrivateRegistries lets images come from registries at private addresses.
	PrivateRegistries bool
	// Pool is how many empty workspaces of the usual size are kept ready.
	Pool int
	// OverlayBytes a sandbox may write outside of its workspace; OutputCap bytes are kept of each output stream of an exec;
	// MaxExecs run in one sandbox at once.
	OverlayBytes, OutputCap uint64
	MaxExecs                uint32
	// SnapshotBytes bounds what a sandbox may have changed for a snapshot of it: 2 GiB. Snapshots is how many of them a tenant may have by name: 20.
	SnapshotBytes int64
	Snapshots     int
	// Cgroup is the group below this process's own that holds the sandboxes' groups.
	Cgroup string
	// Control is how programs are run in a sandbox: "socket", the sentry's control socket, or "command", runsc exec, which takes
	// four times as long. Empty: the socket where its protocol is the one we speak, else the command.
	Control string
	// Progress is told about long steps.
	Progress Progress
}

// Progress is told how far a long step is: total is 0 while it is not known. It may be called from several goroutines.
type Progress func(stage string, done, total int64, note string)

// Drivers: what runs the sandboxes. The name stands in placements.
const (
	DriverGVisor = "gvisor"
	DriverKube   = "kube"
)

// DefaultImage is the reference of the image that is built here instead of being pulled.
const DefaultImage = debian.Reference

func (c DriverConfig) prepare(log *slog.Logger) prepare.Options {
	return prepare.Options{
		CacheDir: c.CacheDir, Runsc: c.Runsc, Toolbox: c.Toolbox, Source: c.Source, Progress: prepare.Progress(c.Progress), Log: log,
	}
}

// idBase is where the ids of guests start on this host; without root there is only one's own.
func idBase() uint32 {
	if os.Geteuid() != 0 {
		return 0
	}
	return gvisor.DefaultHostIDBase
}

func openImages(cfg Config, log *slog.Logger) (*image.Store, error) {
	sources := map[string]image.Source{
		DefaultImage: func(ctx context.Context, p prepare.Progress) (v1.Image, error) {
			return debian.Build(ctx, debian.Options{CacheDir: cfg.Driver.CacheDir, Progress: p, Log: log})
		},
	}
	for ref, path := range maps.All(cfg.Driver.Images) {
		sources[ref] = image.FromPath(path)
	}
	return image.Open(image.Options{
		Dir: filepath.Join(cfg.StateDir, "images"), HostIDBase: idBase(), Sources: sources,
		PrivateRegistries: cfg.Driver.PrivateRegistries, SnapshotBytes: cfg.Driver.SnapshotBytes, Snapshots: cfg.Driver.Snapshots, Log: log,
	})
}

// newGVisor opens gVisor on this host. What Prepare has made already is found; anything else is made now. close ends what it does
// in the background; sandboxes go on.
func newGVisor(ctx context.Context, cfg Config, log *slog.Logger) (d runtime.Driver, closeDriver func(), err error) {
	runsc, err := prepare.Runsc(ctx, cfg.Driver.prepare(log))
	if err != nil {
		return nil, nil, fmt.Errorf("prepare runsc: %w", err)
	}
	toolbox, err := prepare.Toolbox(ctx, cfg.Driver.prepare(log))
	if err != nil {
		return nil, nil, fmt.Errorf("prepare the toolbox: %w", err)
	}
	images, err := openImages(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	base, rootless := idBase(), os.Geteuid() != 0
	if err := cgroup.Settle(); err != nil && !rootless {
		// Each create will say that it cannot have a group; what runs already is still served.
		log.Error("sandboxes cannot be limited here: none will start", "error", err)
	}
	if rootless {
		log.Warn("this worker is not root: memory and the size of workspaces are watched and may be passed for a moment, CPU has no limit unless cgroups are delegated to it")
	}
	owner := base + gvisor.DefaultUID
	spaces, err := workspace.Open(workspace.Options{
		Dir: filepath.Join(cfg.StateDir, "workspaces"), UID: owner, GID: owner, Pool: cfg.Driver.Pool, Directories: rootless, Log: log,
	})
	if err != nil {
		return nil, nil, err
	}
	driver, err := gvisor.New(gvisor.Options{
		StateDir: cfg.StateDir, Runsc: runsc, Toolbox: toolbox, Images: images, Workspaces: spaces, HostIDBase: base,
		OverlayBytes: cfg.Driver.OverlayBytes, OutputCap: cfg.Driver.OutputCap, MaxExecs: cfg.Driver.MaxExecs, Cgroup: cfg.Driver.Cgroup,
		Control: cfg.Driver.Control, Warm: cfg.warm(),
		Progress: prepare.Progress(cfg.Driver.Progress), Log: log,
	})
	if err != nil {
		spaces.Close()
		return nil, nil, err
	}
	return driver, spaces.Close, nil
}

// Prepare gets everything that a worker on this host needs: runsc, the toolbox and the default image, unpacked. It may be
// repeated and then takes moments; a first time takes minutes and is told to progress. StateDir must be set.
func Prepare(ctx context.Context, cfg Config, log *slog.Logger, progress Progress) error {
	cfg = cfg.withDefaults()
	cfg.Driver.Progress = progress
	if cfg.StateDir == "" {
		return errors.New("state directory: must be set")
	}
	if _, err := prepare.Runsc(ctx, cfg.Driver.prepare(log)); err != nil {
		return fmt.Errorf("prepare runsc: %w", err)
	}
	if _, err := prepare.Toolbox(ctx, cfg.Driver.prepare(log)); err != nil {
		return fmt.Errorf("prepare the toolbox: %w", err)
	}
	images, err := openImages(cfg, log)
	if err != nil {
		return err
	}
	if _, err := images.Ensure(ctx, DefaultImage, prepare.Progress(progress)); err != nil {
		return fmt.Errorf("prepare image %s: %w", DefaultImage, err)
	}
	return nil
}

// Tidy removes what sandboxes of this host had in common and what is empty once the last of them is gone. Where others have some, it
// stays.
func Tidy(cfg Config) error {
	if cfg.Driver.Cgroup == "" {
		cfg.Driver.Cgroup = gvisor.DefaultCgroup
	}
	g, err := cgroup.Open(cfg.Driver.Cgroup)
	if err != nil {
		if os.Geteuid() != 0 {
			return nil // without root there may be no cgroups at all
		}
		return fmt.Errorf("find the sandboxes' cgroup: %w", err)
	}
	if err := g.RemoveEmpty(); err != nil {
		return fmt.Errorf("remove the sandboxes' cgroup: %w", err)
	}
	return nil
}
