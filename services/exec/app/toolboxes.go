package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/openexecs"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// route is the way to a sandbox's toolbox: its agent where the log names one, or else its keeper on this host.
func (a *App) route(ctx context.Context, box string) (client.Route, error) {
	keeper := client.Route{Dial: client.KeeperDialer(a.cfg.StateDir, box)}
	if a.agents == nil {
		return keeper, nil
	}
	e, err := a.locator.Endpoint(ctx, box)
	if err != nil {
		return client.Route{}, fmt.Errorf("find the toolbox: %w", err)
	}
	if e == nil {
		return keeper, nil
	}
	return a.agents.Route(client.Agent{Address: e.GetAddress(), Name: e.GetRuntime(), UID: e.GetUid(), KeySHA256: e.GetKeySha256()}), nil
}

// unanswered: the sandbox may have another agent by now.
func (a *App) unanswered(box string) {
	if a.locator != nil {
		a.locator.Forget(box)
	}
}

func (a *App) alive(sandbox string) bool { return a.toolboxes != nil && a.toolboxes.Alive(sandbox) }

// sandboxes are those with a directory below StateDir, and those of this worker that the log gives an agent.
func (a *App) sandboxes(ctx context.Context) ([]string, error) {
	found, err := a.kept()
	if err != nil || a.agents == nil {
		return found, err
	}
	open, err := openexecs.Sandboxes(ctx, a.deps.JS)
	if err != nil {
		return nil, err
	}
	for _, box := range open {
		e, err := a.locator.Endpoint(ctx, box.ID)
		if err != nil {
			return nil, err
		}
		if e != nil {
			found = append(found, box.ID)
		}
	}
	return found, nil
}

func (a *App) kept() (found []string, err error) {
	if a.cfg.StateDir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(filepath.Join(a.cfg.StateDir, "sandboxes"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if e.IsDir() && ids.Valid(e.Name()) {
			found = append(found, e.Name())
		}
	}
	return found, err
}
