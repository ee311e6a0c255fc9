// Package version says what this program was built from.
package version

import (
	"runtime"
	"runtime/debug"
)

// Version is set by the linker in releases.
var Version = "dev"

// Info is what `sandtrail version` tells.
type Info struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	// Commit is the revision the program was built from, "unknown" where the build did not record it; Modified says that the
	// work tree had changes beyond it.
	Commit   string `json:"commit"`
	Modified bool   `json:"modified"`
	Platform string `json:"platform"`
}

// Get reads what the build recorded.
func Get() Info {
	i := Info{Version: Version, Go: runtime.Version(), Commit: "unknown", Platform: runtime.GOOS + "/" + runtime.GOARCH}
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return i
	}
	for _, s := range b.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Commit = s.Value
		case "vcs.modified":
			i.Modified = s.Value == "true"
		}
	}
	return i
}
