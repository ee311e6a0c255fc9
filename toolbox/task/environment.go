package task

import (
	"sort"
	"strings"

	"github.com/sandtrail/sandtrail/toolbox/wire"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environment joins an image's variables with others, of which later ones win. PATH and HOME are always there.
func Environment(home string, image []string, others ...map[string]string) []string {
	all := map[string]string{"PATH": defaultPath, "HOME": home}
	for _, kv := range image {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			// The image's HOME is that of its own user.
			if name != "HOME" {
				all[name] = value
			}
		}
	}
	for _, from := range others {
		for name, value := range from {
			all[name] = value
		}
	}
	out := make([]string, 0, len(all))
	for name, value := range all {
		out = append(out, name+"="+value)
	}
	sort.Strings(out)
	return out
}

// CheckEnvironment refuses names and values that no environment can have, as invalid_argument.
func CheckEnvironment(env map[string]string) error {
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return wire.NewError("invalid_argument", "validation", "env holds a name or a value that no environment can have")
		}
	}
	return nil
}
