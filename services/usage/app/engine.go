package app

import (
	"context"
	"log/slog"

	"github.com/sandtrail/sandtrail/services/usage/internal/engine"
)

// IsEngine reports whether this process was started to be the built-in ClickHouse. Every program that calls New asks first
// thing in main, and in TestMain, and then ends with EngineMain:
//
//	if app.IsEngine() {
//		os.Exit(app.EngineMain())
//	}
func IsEngine() bool { return engine.IsChild() }

// EngineMain is the built-in ClickHouse; it returns the exit code.
func EngineMain() int { return engine.Main() }

// DefaultCache is where downloads stand unless a caller says otherwise: SANDTRAIL_CACHE, or sandtrail in the user's cache.
func DefaultCache() (string, error) { return engine.CacheDir() }

// Prepare gets the library of the built-in engine into the cache directory (empty: DefaultCache), unless it is there, and
// returns its path. progress gets one line for each step; it may be nil.
func Prepare(ctx context.Context, cacheDir string, progress func(string)) (string, error) {
	if cacheDir == "" {
		var err error
		if cacheDir, err = DefaultCache(); err != nil {
			return "", err
		}
	}
	return engine.Prepare(ctx, cacheDir, progress)
}

// StartEngine runs the built-in ClickHouse without the service: for measurements and tests that need a server's whole rights. dir holds its
// data. Its URL is for Config.ClickHouse and holds a password; Close ends it.
func StartEngine(ctx context.Context, dir string, log *slog.Logger) (*engine.Engine, error) {
	library, err := Prepare(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	return engine.Start(ctx, engine.Options{Library: library, Dir: dir, Log: log})
}
